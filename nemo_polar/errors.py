# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Every error Polar raises on purpose, as one tree.

    PolarError
    ├── ConfigError             a setting, a config group or a plug-in name is wrong
    │   ├── TaskFileError       a task file is wrong: names the field and the line
    │   └── RegistryError       nothing is registered under that name
    ├── CallError               the harness's request cannot be served; has an HTTP status and a provider-neutral kind
    │   ├── BadRequest          400: malformed, unsupported, wrong type
    │   ├── ContextOverflow     400: the prompt does not fit the context
    │   ├── Unauthorized        401: unknown, expired or foreign secret
    │   ├── NotFound            404: no such route or model
    │   ├── TooSlow             408: the request did not arrive in time
    │   ├── TooLarge            413: the body is over the limit
    │   │   └── HeaderTooLarge  431: so is the header
    │   ├── UpgradeRefused      426: another protocol was asked for
    │   ├── Overloaded          429: a bound on calls was reached
    │   └── Unavailable         503: the engine, the journal or the proxy cannot serve now
    ├── TokenError              ids cannot be made, extended or parsed
    ├── EngineError             the engine is down, slow or answered something unusable
    │   ├── EngineUnavailable   not reachable, or lost in mid-answer
    │   ├── EngineTimeout       no answer in time
    │   ├── EngineOverloaded    it said so (429, 503)
    │   ├── EngineOverflow      it says that the prompt does not fit
    │   └── EngineProtocol      it answered something that breaks rule 1 (ids or log-probabilities missing, NaN, misaligned)
    │       └── EngineWeights   it drew under other weights than it was believed to serve
    ├── HandoverError           new weights do not serve, or not provably; see ``resumed_at``
    │   ├── HandoverFailed      they could not be read, loaded or proven
    │   │   └── DamagedWeights  the folder does not hold what its manifest says
    │   ├── WrongWeights        the engine scores as neither the new weights nor the old ones do
    │   ├── StaleWeights        it scores as the old weights do, whatever it answered
    │   ├── StaleCache          it has the new weights, and draws from keys of the old ones
    │   └── LostWeights         it no longer serves what it was last given: it was restarted, or changed by somebody else
    ├── JournalError            the journal cannot be written or read
    ├── SandboxError            a sandbox cannot start, run, copy or stop
    ├── HarnessError            a harness is not installed or cannot be planned
    ├── VerifierError           the verifier itself failed (which is never a reward)
    ├── GymError                a NeMo Gym result is not what its format says
    └── AuditError              a finished run cannot be read for audit

A message says what was wrong, where, and what to do. Errors cross process boundaries: each is built from plain strings.
"""

from __future__ import annotations


class PolarError(Exception):
    """Base of the tree."""


class ConfigError(PolarError):
    """A setting, a config group or a plug-in name is wrong."""


class TaskFileError(ConfigError):
    """A task file is wrong. ``line`` counts from 1; None when the format has none."""

    def __init__(self, message: str, *, path: str | None = None, field: str | None = None, line: int | None = None):
        where = ":".join(str(x) for x in (path, line) if x is not None)
        what = f"{field}: {message}" if field else message
        super().__init__(f"{where}: {what}" if where else what)
        self.path, self.field, self.line = path, field, line


class RegistryError(ConfigError):
    """Nothing is registered under that name, or what is there cannot be imported."""


class CallError(PolarError):
    """The harness's request cannot be served. Dialects turn it into their provider's error shape."""

    status = 500
    kind = "server_error"
    """Provider-neutral; each dialect maps it to its own type string."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, retry_after: float | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
        """Dotted path of the offending field."""
        self.code = code
        self.retry_after = retry_after
        """Seconds; becomes a Retry-After header."""


class BadRequest(CallError):
    """Malformed, unsupported or of the wrong type; ``param`` names the field."""

    status = 400
    kind = "invalid_request"


class ContextOverflow(CallError):
    """The prompt does not fit the context. Harnesses compact on this one, so both figures are exact."""

    status = 400
    kind = "context_overflow"

    def __init__(self, prompt_tokens: int, limit: int):
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but the messages come to {prompt_tokens} tokens. "
            "Shorten the messages.",
            param="messages",
            code="context_length_exceeded",
        )
        self.prompt_tokens, self.limit = prompt_tokens, limit


class Unauthorized(CallError):
    """Unknown, expired or foreign secret: one message for all, so that nothing can be learnt from it."""

    status = 401
    kind = "authentication"


class NotFound(CallError):
    """No such route or model."""

    status = 404
    kind = "not_found"


class TooSlow(CallError):
    """The request did not arrive in time."""

    status = 408
    kind = "too_slow"


class TooLarge(CallError):
    """The body is over the limit."""

    status = 413
    kind = "too_large"


class HeaderTooLarge(TooLarge):
    """The header is over the limit."""

    status = 431
    kind = "header_too_large"


class UpgradeRefused(CallError):
    """Another protocol was asked for, and only HTTP is served. Codex takes this status, and no other, for a sign to go on over
    HTTP at once."""

    status = 426
    kind = "upgrade_refused"


class Overloaded(CallError):
    """A bound on calls in flight was reached, or a session's budget is used up."""

    status = 429
    kind = "rate_limit"


class Unavailable(CallError):
    """The engine, the journal or the proxy cannot serve now."""

    status = 503
    kind = "unavailable"


class TokenError(PolarError):
    """Ids cannot be made, extended or parsed."""


class EngineError(PolarError):
    """The engine failed. ``infra`` by definition: never a reward."""

    retryable = False


class EngineUnavailable(EngineError):
    """Not reachable, or lost in mid-answer."""

    retryable = True


class EngineTimeout(EngineError):
    """No answer in time."""

    retryable = True


class EngineOverloaded(EngineError):
    """It said so (429 or 503)."""

    retryable = True


class EngineOverflow(EngineError):
    """The engine says that the prompt does not fit its context."""


class EngineProtocol(EngineError):
    """The answer breaks rule 1: ids or log-probabilities missing, not finite or misaligned."""


class EngineWeights(EngineProtocol):
    """It drew under other weights than it was believed to serve. What it drew has no true version, so it is not recorded."""


class HandoverError(PolarError):
    """New weights do not serve, or not provably. Nothing was drawn under them."""

    resumed_at: int | None = None
    """The version that the engine was brought back to, and proven to serve; None: it stays paused."""


class HandoverFailed(HandoverError):
    """The weights could not be read, loaded or proven."""


class DamagedWeights(HandoverFailed):
    """The folder does not hold what its manifest says: half a file, another file, or none."""


class WrongWeights(HandoverError):
    """The engine scores as neither the new weights nor the old ones do, or the folder is of another version than said."""


class StaleWeights(HandoverError):
    """The engine scores as the old weights do, whatever it answered."""


class StaleCache(HandoverError):
    """The engine has the new weights, and draws from keys and values that the old ones computed."""


class LostWeights(HandoverError):
    """The engine no longer serves what it was last given: it was restarted, or changed by somebody else."""


class JournalError(PolarError):
    """The journal cannot be written or read."""


class SandboxError(PolarError):
    """A sandbox cannot start, run, copy or stop."""


class HarnessError(PolarError):
    """A harness is not installed or cannot be planned."""


class VerifierError(PolarError):
    """The verifier itself failed, which is never a reward."""


class GymError(PolarError):
    """A NeMo Gym result is not what its format says, or cannot be written in it; names the row or the rollout."""


class AuditError(PolarError):
    """A finished run cannot be read for audit."""
