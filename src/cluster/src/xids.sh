# Prints the Xid and SXid lines of the kernel log, or `denied`. Lines begin with the uptime in seconds. Of lines that differ only in
# numbers (an error can repeat a thousand times), only the last is printed.
# On many nodes, users may read neither dmesg nor the journal. Without permission journalctl may succeed with no kernel lines,
# so a journal without any kernel line counts as denied.
kernel_journal() {
    timeout -k 1 5 journalctl -k -b -o short-monotonic --no-pager 2>/dev/null |
        awk '/ kernel: / { some = 1 } /Xid \(/; END { exit !some }'
}
xids() {
    { dmesg 2>/dev/null || kernel_journal || echo denied; } | grep -aE 'NVRM: Xid \(|SXid \(|^denied' |
        LC_ALL=C awk '{
            # `key` is GPU and number, without the time; `words` is the message without digits, also hexadecimal ones.
            key = $0
            sub(/^.*Xid \(/, "", key)
            words = ""
            if (match(key, /\): [0-9]+/)) {
                words = substr(key, RSTART + RLENGTH)
                key = substr(key, 1, RSTART + RLENGTH - 1)
                gsub(/[0-9a-fA-Fx_]+/, "", words)
            }
            line[NR] = $0
            keys[NR] = key words
            last[key words] = NR
        } END { for (n = 1; n <= NR; n++) if (last[keys[n]] == n) print line[n] }' | tail -n 200
}
