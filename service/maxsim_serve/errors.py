"""Every error the service raises on purpose. `api.wire` alone decides how each looks over HTTP.

ServiceError                 code, param, message
├── InvalidInput             a value the caller can mend; `param` names the field
├── TooLarge                 over a limit; `param` names the setting that holds it
├── NotFound                 a collection or document that is not there
├── Conflict                 a collection that exists in another shape
├── Unauthorized             no API key, or a wrong one
├── Busy                     try again after `retry_after_s`
│   ├── QueueFull            too many requests are waiting
│   ├── DeadlineExceeded     waited longer than its deadline
│   ├── OutOfMemory          the device had no room for this request
│   ├── DeviceLost           the device failed for good; the process stops
│   ├── Starting             the store is being loaded
│   └── Draining             the service is stopping
├── OutOfSpace               the disk or a memory budget is full; reads go on
├── InDoubt                  a commit failed, and only a restart can tell whether it is on disk
└── DirectoryInUse           another process owns the data directory
"""

__all__ = [
    "Busy",
    "Conflict",
    "DeadlineExceeded",
    "DeviceLost",
    "DirectoryInUse",
    "Draining",
    "InDoubt",
    "InvalidInput",
    "NotFound",
    "OutOfMemory",
    "OutOfSpace",
    "QueueFull",
    "ServiceError",
    "Starting",
    "TooLarge",
    "Unauthorized",
]


class ServiceError(Exception):
    """Base of the tree. `code` is a stable machine word, `param` the field or setting concerned."""

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidInput(ServiceError):
    code = "invalid_input"


class TooLarge(ServiceError):
    code = "too_large"


class NotFound(ServiceError):
    code = "not_found"


class Conflict(ServiceError):
    code = "conflict"


class Unauthorized(ServiceError):
    code = "unauthorized"


class Busy(ServiceError):
    code = "busy"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(Busy):
    code = "queue_full"


class DeadlineExceeded(Busy):
    code = "deadline_exceeded"


class OutOfMemory(Busy):
    code = "out_of_memory"


class DeviceLost(Busy):
    code = "device_lost"


class Starting(Busy):
    code = "starting"


class Draining(Busy):
    code = "draining"


class OutOfSpace(ServiceError):
    code = "out_of_space"


class InDoubt(ServiceError):
    code = "store_in_doubt"


class DirectoryInUse(ServiceError):
    code = "directory_in_use"
