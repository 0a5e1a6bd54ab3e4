# Prints a frame of what this node does every so many seconds, for `sh -c` with $query, $format, $apps, $every and $first set.
# One write per frame: whoever watches many nodes is woken once for each.
# It starts as few programs as it can: on a busy node each of them waits for its turn.
export LC_ALL=C
read -r boot </proc/sys/kernel/random/boot_id
host() {
    read -r load </proc/loadavg
    { read -r total && read -r _ && read -r available; } </proc/meminfo
    read -r cpu </proc/stat
    printf '#host\n%s\n%s\n%s\n%s\n%s\n' "$boot" "$load" "$total" "$available" "$cpu"
}
frame() {
    host
    echo '#gpus'
    timeout -k 2 20 nvidia-smi "$query" "$format" 2>&1
    status=$?
    # The empty line tells a last row that is whole from one that is not.
    printf '\n#exit %s\n' $status
    # What is not there, or hangs, need not be asked again.
    case $status in
        124 | 127 | 137) ;;
        *)
            listed=$(timeout -k 2 20 nvidia-smi "$apps" "$format" 2>&1)
            printf '#apps\n%s\n\n#exit %s\n' "$listed" $?
            processes
            ;;
    esac
    # Where there is no nvidia-smi, no driver says anything.
    [ $status = 127 ] || errors
    read -r up _ </proc/uptime
    echo "#end $number $up"
}
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
    echo '#environment'
    # shellcheck disable=SC2046,SC2086  # lists
    grep -sazHE '^(VIDTUI_RUN|RANK)=' $(printf '/proc/%s/environ ' $pids) | tr '\0' '\n'
}
# Errors stay in the kernel's log: once a minute is soon enough.
errors() {
    [ $((number % 12)) = 1 ] || return 0
    echo '#xids'
    xids
}
begin() {
    number=$((number + 1))
    begun="#frame $number $(date +%s.%N) $up"
}
# What the kernel does not let go of, `timeout` cannot end and waits for. A frame is therefore made beside this loop, which
# says so from then on, and lets nobody ask again before that one has ended: they would pile up.
frames() {
    number=0 asking='' began=0
    while :; do
        read -r up _ </proc/uptime
        if [ -z "$asking" ] || ! kill -0 "$asking" 2>/dev/null; then
            # Where nobody reads any more, writing has failed.
            [ -z "$asking" ] || wait "$asking" || exit
            began=${up%.*}
            begin
            {
                whole=$(frame) || exit 0
                # After one that hung, others have told what there was to tell.
                read -r up _ </proc/uptime
                [ $((${up%.*} - began)) -gt "$hung" ] || printf '%s\n%s\n' "$begun" "$whole"
            } &
            asking=$!
        elif [ $((${up%.*} - began)) -gt "$hung" ]; then
            begin
            # Why it hangs, that log may tell.
            printf '%s\n%s\n#gpus\n\n#exit 124\n%s\n#end %s %s\n' "$begun" "$(host)" "$(errors)" $number "$up" || exit
        fi
        sleep "$first"
        first=$every
    done
}
