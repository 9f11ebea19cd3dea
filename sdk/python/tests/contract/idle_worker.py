"""A process of `dalsegno dev` that does nothing: it says how to reach its run, and a test plays its worker."""

import json
import os
import sys
import time
from pathlib import Path

pod = Path(sys.argv[1])
place = {
    "pid": os.getpid(),
    "url": os.environ["DALSEGNO_URL"],
    "token": Path(os.environ["DALSEGNO_TOKEN_FILE"]).read_text().strip(),
}
pod.with_suffix(".new").write_text(json.dumps(place))
pod.with_suffix(".new").rename(pod)
time.sleep(600)
