# Expects something wrong on purpose: run-all.sh must report this test as failed.
. "$PROGRAMS/expect.sh"
echo right >"$MOUNT/canary"
gives "the canary reads what it wrote" wrong cat "$MOUNT/canary"
