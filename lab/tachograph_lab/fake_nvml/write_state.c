/* A program that writes a fresh state to the file it is given, and prints the names of CALLS. */
#include "state.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    static struct state fresh;
    fill_default(&fresh, 100000);
    fresh.live = 0;
    FILE *file = argc == 2 ? fopen(argv[1], "wb") : NULL;
    if (!file || fwrite(&fresh, sizeof fresh, 1, file) != 1 || fclose(file)) {
        perror("state file");
        return 1;
    }
    puts(CALLS(AS_WORD));
    return 0;
}
