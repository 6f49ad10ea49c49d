# What the same calls cost on a pool on the whole device.
ndctl create-namespace -f -e namespace0.0 -m devdax -M mem --align=2M >/dev/null
nacre create --force /dev/dax0.0
nacre run --quiet --pool /dev/dax0.0 -- nacre bench-count nacre /nacre/b >>"$figures"
nacre check /dev/dax0.0
