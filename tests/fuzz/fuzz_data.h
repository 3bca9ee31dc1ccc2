/* What the dataset targets share. */
#ifndef MLO_TESTS_FUZZ_DATA_H
#define MLO_TESTS_FUZZ_DATA_H

/* Opens the dataset at `path`, and when that goes well reads all that there is of it (within bounds): labels,
 * digests of samples, and batches for a model with one input float32[n,2,2]. */
void fuzz_dataset(const char *path);

#endif
