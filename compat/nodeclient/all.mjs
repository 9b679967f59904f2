// All tests, in one process, so that they share the clusters.

import './kv.mjs';
import './lease.mjs';
import './watch.mjs';
import './members.mjs';
