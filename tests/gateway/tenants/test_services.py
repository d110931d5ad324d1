from __future__ import annotations

import pytest

from tests.gateway.tenants.services import require_program


def test_a_program_that_is_missing_is_skipped_by_users_and_fails_in_ci() -> None:
    with pytest.raises(pytest.skip.Exception, match="the Debian package some-package has it"):
        require_program("no-such-program", "some-package", in_ci=False)
    with pytest.raises(pytest.fail.Exception, match="CI must not skip it"):
        require_program("no-such-program", "some-package", in_ci=True)
    assert require_program("sh", "dash", in_ci=True).endswith("/sh")
