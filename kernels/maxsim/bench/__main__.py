"""`python -m maxsim.bench`, for those who have only the library."""

import sys

from maxsim.bench import main

sys.exit(main(sys.argv[1:]))
