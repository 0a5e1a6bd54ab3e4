@EXISTING
[ -w "$dir" ] && echo "@NAME_writable yes"
set -- $(df -Pk "$dir" | tail -n 1)
echo "@NAME_free_kib $4"
set -- $(df -Pi "$dir" 2>/dev/null | tail -n 1)
echo "@NAME_inodes ${4:--}"
