# perl: in-place edit, -T tests, sockets of files, tied files, sysopen, file locks.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
perl -e 'open F, ">", "a" or die; print F "line $_\n" for 1..1000; close F or die'
gives "in-place edit with a backup" "LINE 1000" bash -c 'perl -i.bak -pe "s/line/LINE/" a && tail -n 1 a'
gives "backup" "line 1" head -n 1 a.bak
gives "file tests" "1000 f s !d" perl -le '@l = do { open F, "a"; <F> }; print join " ", scalar @l, (-f "a" ? "f" : "!f"), (-s "a" ? "s" : "!s"), (-d "a" ? "d" : "!d")'
gives "seek and tell" "42 LINE" perl -e 'open F, "+<", "a"; seek F, 42, 0; print tell(F), " "; seek F, 0, 0; read F, $x, 4; print $x'
gives "sysopen, flock, truncate" "5" perl -e '
    use Fcntl qw(:DEFAULT :flock); sysopen F, "b", O_RDWR|O_CREAT|O_EXCL or die; flock F, LOCK_EX or die;
    syswrite F, "0123456789"; truncate F, 5; print -s F'
gives "folder walk" "4" perl -MFile::Find -MFile::Path=make_path -e '
    make_path("d/e/f"); open F, ">", "d/e/x"; my $n = 0; find(sub { $n++ }, "d"); print $n'
gives "copy and compare" "0" perl -MFile::Copy -MFile::Compare -e 'copy("a", "c") or die; print compare("a", "c")'
gives "move into the pool" "moved" perl -MFile::Copy -MFile::Temp=tempfile -e '
    my ($f, $n) = tempfile(DIR => $ENV{SCRATCH}); print $f "moved"; close $f; move($n, "m") or die; open F, "m"; print <F>'
gives "temporary file" "10000" perl -MFile::Temp=tempfile -e '($f, $n) = tempfile(DIR => ".", UNLINK => 1); print $f "x" x 10000; close $f; print -s $n'
gives "child shares the offset" "parent
child
after" perl -e 'open F, ">", "s"; $| = 1; select((select(F), $| = 1)[0]); print F "parent\n";
    if (!fork) { print F "child\n"; exit } wait; print F "after\n"; close F; print `cat s`'
gives "tied file" "1001 inserted" perl -MTie::File -e 'tie my @l, "Tie::File", "a" or die; splice @l, 500, 0, "inserted"; print scalar(@l), " $l[500]"'
gives "database file" "499" perl -MSDBM_File -MFcntl -e 'tie %h, "SDBM_File", "db", O_RDWR|O_CREAT, 0600 or die; $h{$_} = $_ for 0..499; untie %h;
    tie %h, "SDBM_File", "db", O_RDONLY, 0600 or die; print $h{499}'
gives "storable" "9" perl -MStorable=store,retrieve -e 'store [0..9], "st"; print retrieve("st")->[9]'
gives "utime and stat" "1000000000 2000000000" perl -e 'utime 1000000000, 2000000000, "a"; print join " ", (stat "a")[8,9]'
gives "opendir keeps its place" "6" perl -e 'mkdir "o"; for (1..4) { open F, ">", "o/$_" } opendir D, "o"; readdir D; my $p = telldir D; my @r = readdir D; seekdir D, $p; @s = readdir D; print "@r" eq "@s" ? 1 + @s : "differs"'
gives "chdir and glob" "a a.bak" perl -e 'chdir $ENV{MOUNT}; print join " ", glob("a*")'
gives "pipe from a script in the pool" "script ok" bash -c 'printf "#!/usr/bin/perl\nprint qq(script @ARGV)" >p.pl; chmod +x p.pl; ./p.pl ok'
