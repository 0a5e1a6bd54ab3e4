# Prints the facts about a node that a launch checks, one per line. The last line, `end`, marks the output as complete.
export LC_ALL=C
one_line() { tr '\n\t' '  ' | cut -c 1-300; }
# Containers of one machine share its boot id but not its process namespace.
echo "machine $(cat /proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/pid)"
if [ -x @TRAINER ]; then
    # openssl uses the SHA instructions of the CPU, and takes a third of the time.
    hash=$(openssl dgst -sha256 -r <@TRAINER 2>/dev/null || sha256sum <@TRAINER)
    echo "sha256 ${hash%% *}"
    if output=$(@TRAINER version --json 2>&1 </dev/null); then
        echo "version $(printf '%s' "$output" | tail -n 1)"
    else
        echo "broken $(printf '%s' "$output" | tail -n 1 | one_line)"
    fi
else
    echo "missing"
fi
[ "$(cat @MARKER 2>/dev/null)" = @TOKEN ] && echo "visible yes" || echo "visible no"
@DISKS
# Permission bits are not enough: some file systems deny reads that the bits allow.
for file in @DATA; do
    # `data.index` may be a folder.
    head -c 1 "$file" >/dev/null 2>&1 || ls "$file/" >/dev/null 2>&1 || echo "unread $file"
done
[ -z @WEIGHTS ] || { [ -r @WEIGHTS/@MANIFEST ] && echo "weights yes" || echo "weights no"; }
[ -z @ADDRESS ] || for port in @PORT $((@PORT + 1)); do
    output=$(timeout 5 bash -c ': </dev/tcp/'@ADDRESS/$port 2>&1)
    case $?:$output in
        0:*) echo "port $port taken" ;;
        *refused*) echo "port $port free" ;;
        124:*) echo "port $port silent" && break ;;
        *) echo "port $port unknown $(printf '%s' "$output" | tail -n 1 | one_line)" ;;
    esac
done
@GPUS
echo end
