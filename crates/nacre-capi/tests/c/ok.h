/* What these programs have in common: the first thing that is not so ends them. */
#include <nacre.h>
#include <stdio.h>
#include <stdlib.h>

#define IS(condition) ok((condition), #condition, __LINE__)
#define S nacre_str

static void ok(int fine, const char *what, int line) {
    if (!fine) {
        fprintf(stderr, "line %d: %s: %s\n", line, what, nacre_error_message());
        exit(1);
    }
}
