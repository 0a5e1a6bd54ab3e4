# Prints the output of nvidia-smi and its exit status. A call that hangs is killed after 20 s.
query_gpus() { # NAME ARGUMENT...
    name=$1
    shift
    # If a folder of PATH cannot be searched, `timeout` reports a program that is missing (127) as forbidden (126).
    output=$(command -v nvidia-smi >/dev/null || exit 127; timeout -k 2 20 nvidia-smi "$@" 2>&1)
    status=$?
    printf '%s\n' "$output" | sed "s/^/$name /"
    echo "${name}_status $status"
}
[ -z "$CUDA_VISIBLE_DEVICES" ] || echo "in_sight $CUDA_VISIBLE_DEVICES"
query_gpus gpu "$query" "$format"
# A second call is useless if nvidia-smi is missing (127) or hangs (124, 137).
case $status in
    124 | 127 | 137) ;;
    *)
        # 0x10de is NVIDIA's PCI vendor id.
        grep -qsi '^0x10de' /sys/bus/pci/devices/*/vendor && echo "plugged_in yes"
        query_gpus app "$apps" "$format"
        pids=$(printf '%s\n' "$output" | awk -F ', ' '$2 ~ /^[0-9]+$/ { print $2 }' | sort -u | tr '\n' ' ')
        [ -z "$pids" ] || ps -o pid= -o user:32= -p "${pids% }" | sed 's/^ */owner /'
        xids | sed 's/^/xid /'
        ;;
esac
