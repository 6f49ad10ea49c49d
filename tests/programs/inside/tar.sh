# A source tree in and out of archives.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
source=/usr/include
tar -C "$source" -cf "$SCRATCH/source.tar" linux asm-generic
mkdir first second third
tar -C first -xf "$SCRATCH/source.tar"
diff -r "$source/linux" first/linux || fail "extracted tree differs"
same_tree "names, modes and times" "$source/linux" first/linux

note archive inside the pool
tar -C first -czf all.tgz .
gzip -t all.tgz
tar -C second -xzf all.tgz
same_tree "through a compressed archive in the pool" first second
tar -C first -cf - . | tar -C third -xf -
same_tree "through a pipe" first third
tar -C third --compare -zf all.tgz || fail "tar --compare"

note single members, append, update
tar -tzf all.tgz | sort >list
same "members" "$(find first | wc -l)" "$(wc -l <list)"
tar -xzOf all.tgz ./linux/fs.h | cmp - "$source/linux/fs.h"
tar -cf some.tar -C first linux/fs.h
tar -rf some.tar -C first linux/stat.h
gives "append" $'linux/fs.h\nlinux/stat.h' tar -tf some.tar
tar --delete -f some.tar linux/fs.h
gives "delete" linux/stat.h tar -tf some.tar

note gzip
cp "$SCRATCH/source.tar" big
gzip -k big && gzip -dc big.gz | cmp - big
gzip -9 big && [[ ! -e big ]] && gunzip big.gz && cmp big "$SCRATCH/source.tar"
zcat all.tgz | wc -c >/dev/null

note sparse files and links
truncate -s 10M sparse && echo end >>sparse
ln -s sparse link && ln sparse hard
tar -cSf sparse.tar sparse link hard
(($(stat -c %s sparse.tar) < 100000)) || fail "tar -S stores holes"
mkdir out && tar -C out -xSf sparse.tar
cmp sparse out/sparse
(($(stat -c %b out/sparse) <= 16)) || fail "holes are restored"
same "hard link is restored" "$(stat -c %i out/sparse)" "$(stat -c %i out/hard)"
gives "link is restored" sparse readlink out/link
rm -rf first second third
