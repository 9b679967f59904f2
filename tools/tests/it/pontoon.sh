#!/bin/sh
# Stands for the server in tests of `pontoonctl dev`: the test binary is one.
SERVE="$*" exec "$PONTOONCTL_TESTS" --exact serving::as_pontoon --ignored --nocapture
