# Prints a frame of samples of this node every $every seconds, for `sh -c` with $query, $format, $apps, $every, $first and $sys set.
# Each frame is one write, so that the reader wakes up once per frame.
# The script starts few programs, because on a busy node each of them waits for the CPU.
export LC_ALL=C
read -r boot </proc/sys/kernel/random/boot_id
page=$(getconf PAGESIZE 2>/dev/null)
page_kib=$((${page:-4096} / 1024))
host() {
    read -r load </proc/loadavg
    { read -r total && read -r _ && read -r available; } </proc/meminfo
    read -r cpu </proc/stat
    printf '#host\n%s\n%s\n%s\n%s\n%s\n' "$boot" "$load" "$total" "$available" "$cpu"
    links
}
# Only interfaces of a device count: veth, bridges, bonds, VLANs and tunnels have none, and their traffic would count twice. In a
# container no interface has a device; there all but lo count. Type 32 is IP over InfiniBand, whose traffic the port counts.
links() {
    device=''
    for link in "$sys"/class/net/*/device; do
        [ ! -e "$link" ] || device=/device
    done
    for link in "$sys"/class/net/*; do
        [ "${link##*/}" != lo ] && [ -e "$link$device" ] || continue
        read -r type <"$link/type" && [ "$type" != 32 ] || continue
        read -r rx <"$link/statistics/rx_bytes" && read -r tx <"$link/statistics/tx_bytes" || continue
        echo "net ${link##*/} $rx $tx"
    done
    for link in "$sys"/class/infiniband/*/ports/*; do
        [ -e "$link/counters/port_rcv_data" ] || continue
        read -r rx <"$link/counters/port_rcv_data" && read -r tx <"$link/counters/port_xmit_data" || continue
        adapter=${link%/ports/*}
        echo "ib ${adapter##*/}/${link##*/} $rx $tx"
    done
} 2>/dev/null
frame() {
    host
    echo '#gpus'
    timeout -k 2 20 nvidia-smi "$query" "$format" 2>&1
    status=$?
    # The empty line shows that the last row is complete.
    printf '\n#exit %s\n' $status
    # Skip the second query if nvidia-smi is missing or hangs.
    case $status in
        124 | 127 | 137) ;;
        *)
            listed=$(timeout -k 2 20 nvidia-smi "$apps" "$format" 2>&1)
            printf '#apps\n%s\n\n#exit %s\n' "$listed" $?
            processes
            ;;
    esac
    # Without nvidia-smi there are no Xid errors.
    [ $status = 127 ] || errors
    read -r up _ </proc/uptime
    echo "#end $number $up"
}
# Prints the process id, the ticks in user and in kernel mode, and the resident memory in KiB.
usage() { echo "$1 ${13} ${14} $((${23} * page_kib))"; }
processes() {
    pids=''
    while IFS=', ' read -r _ pid _; do
        case $pid in '' | *[!0-9]*) ;; *) pids="$pids $pid" ;; esac
    done <<END
$listed
END
    [ -n "$pids" ] || return
    echo '#processes'
    ps -ww -o pid= -o user:32= -o etimes= -o args= -p "${pids# }" | cut -c 1-300
    echo '#usage'
    for pid in $pids; do
        # The name of the program, in parentheses, may contain any text, line ends too.
        stat=''
        while IFS= read -r line || [ -n "$line" ]; do stat="$stat $line"; done <"/proc/$pid/stat" && usage "$pid" ${stat##*)}
    done 2>/dev/null
    echo '#environment'
    # shellcheck disable=SC2046,SC2086  # lists
    grep -sazHE '^(VIDTUI_RUN|RANK)=' $(printf '/proc/%s/environ ' $pids) | tr '\n\0' ' \n'
}
# Errors stay in the kernel log, so that every twelfth frame is enough.
errors() {
    [ $((number % 12)) = 1 ] || return 0
    echo '#xids'
    xids
}
begin() {
    number=$((number + 1))
    begun="#frame $number $(date +%s.%N) $up"
}
# `timeout` cannot end a process that is stuck in the kernel, and waits for it. Therefore a background process makes the frame,
# and this loop reports the hang and starts no second nvidia-smi until the first has ended.
frames() {
    number=0 asking='' began=0
    while :; do
        read -r up _ </proc/uptime
        if [ -z "$asking" ] || ! kill -0 "$asking" 2>/dev/null; then
            # A failed write means that the reader is gone.
            [ -z "$asking" ] || wait "$asking" || exit
            began=${up%.*}
            begin
            {
                whole=$(frame) || exit 0
                # A frame that took too long is dropped: frames without GPUs were printed in the meantime.
                read -r up _ </proc/uptime
                [ $((${up%.*} - began)) -gt "$hung" ] || printf '%s\n%s\n' "$begun" "$whole"
            } &
            asking=$!
        elif [ $((${up%.*} - began)) -gt "$hung" ]; then
            begin
            # The kernel log may show why nvidia-smi hangs.
            printf '%s\n%s\n#gpus\n\n#exit 124\n%s\n#end %s %s\n' "$begun" "$(host)" "$(errors)" $number "$up" || exit
        fi
        sleep "$first"
        first=$every
    done
}
