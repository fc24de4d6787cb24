"""The engine's errors: a stable code, a sentence that names the limit and the remedy, the parameter at fault."""

from __future__ import annotations


class EngineError(Exception):
    """Something a caller asked for cannot be done.

    `code` is stable: invalid_params, invalid_config, context_length_exceeded, empty_prompt, kv_cache_too_small,
    duplicate_request, nan_logits, invalid_prompt, chat_template_error, model_not_found, model_unsupported,
    structured_outputs_failed, params_mismatch, engine_died, engine_closed.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[type[EngineError], tuple[str, str, str | None]]:
        """Errors cross thread and process borders whole."""
        return type(self), (self.code, self.message, self.param)
