/* Files of git that end with their own sum: packs and their indexes (gitformat-pack). */
#ifndef MLO_BASE_GIT_FILE_H
#define MLO_BASE_GIT_FILE_H

#include "base/git_object.h"

/* Whether the file ends with the SHA-1 of all that stands before, which becomes *sum. False also when it
 * cannot be read. */
bool mlo_git_file_sound(const char *path, struct mlo_git_id *sum);

#endif
