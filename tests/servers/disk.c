/* Preloaded into a process: what it syncs is copied to the folder SYNCED_TO, as a power
   cut would leave it: all that was written before, and nothing of what came after. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void keep(int file)
{
    char link[64], path[PATH_MAX], kept[2 * PATH_MAX], some[65536];
    struct stat about;
    const char *folder = getenv("SYNCED_TO");
    if (!folder || fstat(file, &about) || !S_ISREG(about.st_mode))
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        abort();
    path[length] = 0;
    snprintf(kept, sizeof kept, "%s%s", folder, strrchr(path, '/'));
    int copy = open(kept, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    off_t at = 0;
    while ((length = pread(file, some, sizeof some, at)) > 0) {
        if (write(copy, some, length) != length)
            abort();
        at += length;
    }
    close(copy);
}

int fsync(int file)
{
    keep(file);
    return 0;
}

int fdatasync(int file)
{
    keep(file);
    return 0;
}
