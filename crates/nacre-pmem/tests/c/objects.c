/* Numbers in a list of libpmemobj, each added by a transaction: argv[1] pool, argv[2] how many. */
#include <libpmemobj.h>
#include <stdio.h>
#include <stdlib.h>

struct node {
    PMEMoid next;
    long number;
};

struct root {
    PMEMoid first;
    long sum;
};

int main(int argc, char **argv)
{
    if (argc != 3)
        return 1;
    PMEMobjpool *pool = pmemobj_create(argv[1], "list", PMEMOBJ_MIN_POOL, 0600);
    if (pool == NULL) {
        fprintf(stderr, "%s\n", pmemobj_errormsg());
        return 2;
    }
    PMEMoid oid = pmemobj_root(pool, sizeof(struct root));
    struct root *root = pmemobj_direct(oid);
    for (long number = 1; number <= atol(argv[2]); number++) {
        TX_BEGIN(pool) {
            pmemobj_tx_add_range(oid, 0, sizeof(struct root));
            PMEMoid made = pmemobj_tx_alloc(sizeof(struct node), 1);
            struct node *node = pmemobj_direct(made);
            node->number = number;
            node->next = root->first;
            root->first = made;
            root->sum += number;
        } TX_END
    }
    printf("%ld\n", root->sum);
    pmemobj_close(pool);
    return 0;
}
