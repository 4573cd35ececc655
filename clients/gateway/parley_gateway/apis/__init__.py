"""Every protocol by which clients come in: each API is a module with ``routes(gateway) -> APIRouter``."""
