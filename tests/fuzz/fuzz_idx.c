/* IDX files, plain or gzipped: alone, and as images and labels at once. */
#include <stdio.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2};
    char pair[1400];
    const char *images = fuzz_file("images", data, size);
    fuzz_dataset(images);
    snprintf(pair, sizeof pair, "%s,%s", images, images);
    fuzz_dataset(pair);
    snprintf(pair, sizeof pair, "%s,%s", images, fuzz_file("labels", labels, sizeof labels));
    fuzz_dataset(pair);
    return 0;
}
