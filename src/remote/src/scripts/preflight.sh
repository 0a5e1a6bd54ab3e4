# Says what a launch needs to know of a node. One fact to a line; a last line says that all were told.
export LC_ALL=C
one_line() { tr '\n\t' '  ' | cut -c 1-300; }
# Containers of one machine have the boot in common, and not their processes.
echo "machine $(cat /proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/pid)"
if [ -x @TRAINER ]; then
    echo "sha256 $(sha256sum <@TRAINER | cut -d ' ' -f 1)"
    if said=$(@TRAINER version --json 2>&1 </dev/null); then
        echo "version $(printf '%s' "$said" | tail -n 1)"
    else
        echo "broken $(printf '%s' "$said" | tail -n 1 | one_line)"
    fi
else
    echo "missing"
fi
[ "$(cat @MARKER 2>/dev/null)" = @TOKEN ] && echo "visible yes" || echo "visible no"
@DISKS
# Permissions say too little: some file systems grant what they then refuse.
for file in @DATA; do
    head -c 1 "$file" >/dev/null 2>&1 || echo "unread $file"
done
[ -z @WEIGHTS ] || { [ -r @WEIGHTS/@MANIFEST ] && echo "weights yes" || echo "weights no"; }
[ -z @ADDRESS ] || for port in @PORT $((@PORT + 1)); do
    said=$(timeout 5 bash -c ': </dev/tcp/'@ADDRESS/$port 2>&1)
    case $?:$said in
        0:*) echo "port $port taken" ;;
        *refused*) echo "port $port free" ;;
        124:*) echo "port $port silent" && break ;;
        *) echo "port $port unknown $(printf '%s' "$said" | tail -n 1 | one_line)" ;;
    esac
done
@GPUS
echo end
