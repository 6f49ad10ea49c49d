# A C project with a library, generated code and a parallel build, compiled, run and rebuilt.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
mkdir -p project/{src,include,build}
cd project
cat >Makefile <<'END'
CFLAGS = -O1 -Iinclude -MMD -MP -Wall -Werror
PARTS = $(patsubst src/part%.c,%,$(wildcard src/part*.c))
OBJECTS = $(patsubst %,build/part%.o,$(PARTS))
all: build/program build/libparts.so
build/program: build/main.o build/libparts.a ; $(CC) -o $@ $^
build/libparts.a: $(OBJECTS) ; $(AR) rcs $@ $?
build/libparts.so: $(OBJECTS) ; $(CC) -shared -o $@ $^
build/%.o: src/%.c ; $(CC) $(CFLAGS) -fPIC -c -o $@ $<
clean: ; rm -f build/*
-include $(wildcard build/*.d)
.PHONY: all clean
END
for i in $(seq 20); do
    echo "#include \"parts.h\"
int part$i(void) { return OFFSET + $i; }" >src/part$i.c
done
{
    echo '#define OFFSET 0'
    for i in $(seq 20); do echo "int part$i(void);"; done
} >include/parts.h
{
    printf '#include <stdio.h>\n#include "parts.h"\nint main(int c, char **v) {\n    int sum = 0;\n'
    for i in $(seq 20); do echo "    sum += part$i();"; done
    printf '    printf("%%s %%d\\n", v[0], sum);\n    return sum %% 256;\n}\n'
} >src/main.c
make -s -j2
out=$(./build/program) || status=$?
same "program stored in the pool runs" "./build/program 210" "$out"
same "and gives its exit status" 210 "$status"
contains "nothing to do" "Nothing to be done" "$(make all)"
sleep 0.01
sed -i 's/OFFSET 0/OFFSET 1/' include/parts.h
make -s -j2
same "rebuilt after a change of the header" "build/program 230" "$(build/program || true)"
touch src/part7.c
same "only what depends on it" 1 "$(make -n | grep -c -- '-c -o')"
make -s -j2
cat >use.c <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int c, char **v) {
    void *library = dlopen(v[1], RTLD_NOW);
    if (!library) return puts(dlerror()), 1;
    int (*part)(void) = (int (*)(void))dlsym(library, "part20");
    printf("%d\n", part());
}
END
gcc -o use use.c
gives "a library of the pool is loaded by dlopen" 21 ./use "$PWD/build/libparts.so"
gcc -o linked -Wl,-rpath,"$PWD/build" -Iinclude src/main.c build/libparts.so
same "a library of the pool is loaded at start" "./linked 230" "$(./linked || true)"
gcc -pg -o profiled use.c 2>/dev/null && ./profiled "$PWD/build/libparts.so" >/dev/null && [[ -s gmon.out ]] || fail "gmon.out at exit"
make -s clean
gives "clean" "" ls build
