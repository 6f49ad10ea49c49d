#!/bin/bash
# Installs the Debian packages named on the command line that are missing.
set -u
missing=()
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
((${#missing[@]})) || exit 0
as_root=()
if ((EUID)); then
    as_root=(sudo -n)
    if ! sudo -n true 2>/dev/null; then
        echo "missing packages, which only root can install: ${missing[*]}" >&2
        exit 1
    fi
fi
echo "installing: ${missing[*]}"
# Servers must not be started by their packages: the tests start their own.
policy=/usr/sbin/policy-rc.d
made_policy=
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null && "${as_root[@]}" chmod 755 "$policy" && made_policy=yes
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 update >/dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 install --yes --no-install-recommends "${missing[@]}" >/dev/null
status=$?
[[ -z $made_policy ]] || "${as_root[@]}" rm -f "$policy"
exit $status
