/* dataset.json manifests, beside an IDX pair of three samples. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_data.h"

static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2,  0,  0,
                                 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool there;
    if (!there) {
        fuzz_file("i", images, sizeof images);
        fuzz_file("l", labels, sizeof labels);
        there = true;
    }
    fuzz_file("dataset.json", data, size);
    fuzz_dataset(fuzz_folder());
    return 0;
}
