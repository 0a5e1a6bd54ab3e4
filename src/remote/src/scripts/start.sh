# Starts a script in a new session and waits up to 5 s for its process file or its exit. Secrets pass through pipes only.
secrets=$(cat)
if [ -n "$secrets" ]; then
    export VIDTUI_SECRETS=stdin
fi
printf '%s\n' "$secrets" | setsid bash @SCRIPT >/dev/null &
pid=$!
tries=0
while [ $tries -lt 100 ]; do
    if ! kill -0 $pid 2>/dev/null; then
        wait $pid
        status=$?
        # A supervisor that finished quickly has written its process file and exited.
        [ ! -e @PID_FILE ] || { echo started; exit 0; }
        echo "ended $status"
        exit 0
    fi
    [ ! -e @PID_FILE ] || { echo started; exit 0; }
    tries=$((tries + 1))
    sleep 0.05
done
echo slow
