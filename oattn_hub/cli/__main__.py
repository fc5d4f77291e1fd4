"""``python -m oattn_hub.cli`` is ``oattn``."""

import sys

from oattn_hub.cli import main

sys.exit(main())
