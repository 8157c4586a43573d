#!/usr/bin/env bash
# `make demo`: index three well-known libraries out of the virtual environment and search them.
set -euo pipefail
bin=$1
demo=$PWD/.demo
site=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# One tree of three libraries, copied once, so that a second demo finds no change.
if [ ! -d "$demo/tree" ]; then
    rm -rf "$demo/partial"
    mkdir -p "$demo/partial"
    for library in prefect dask distributed; do
        (cd "$site" && find "$library" -name '*.py' -print0 | tar --null --files-from=- -cf -) | tar -C "$demo/partial" -xf -
    done
    mv "$demo/partial" "$demo/tree"
fi

export DRIFTLINE_WORKSPACE=$demo/workspace
run() {
    local word line='$ driftline'
    for word; do
        case $word in *' '*) line+=" \"$word\"" ;; *) line+=" $word" ;; esac
    done
    printf '\n%s\n' "$line"
    "$bin/driftline" "$@"
}

printf '%s holds %s files\n' "$demo/tree" "$(find "$demo/tree" -type f | wc -l)"
run index "$demo/tree"
run status
run search "retry a task when it fails with an exception" --top-k 3 -n 0
run search "worker process died, reschedule its tasks" --top-k 3 -n 0 --dir distributed
run search "parse a cron schedule" --top-k 3 -n 0 --ext .py
printf '\nThe same again takes a moment, because nothing has changed:\n'
run index "$demo/tree"
