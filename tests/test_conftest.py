from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import find_shared_dir


def test_a_missing_shared_folder_is_a_skip_for_users_and_a_failure_in_ci(tmp_path: Path) -> None:
    assert find_shared_dir(tmp_path, in_ci=True) == tmp_path
    with pytest.raises(pytest.skip.Exception, match="is not there"):
        find_shared_dir(tmp_path / "absent", in_ci=False)
    with pytest.raises(pytest.fail.Exception, match="CI must not skip it"):
        find_shared_dir(tmp_path / "absent", in_ci=True)
