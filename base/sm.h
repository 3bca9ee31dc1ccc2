/* GPUs by their compute capability: what targets name, and what runs where. One rule for plans, jobs and
 * releases. */
#ifndef MLO_BASE_SM_H
#define MLO_BASE_SM_H

#include <stdbool.h>

/* The compute capability that a target names: 90 of "cuda:sm90"; 0: it names none. */
int mlo_cuda_target_sm(const char *target);
/* Whether a GPU of compute capability `gpu` runs machine code for `code`: the same generation, and no less
 * (NVIDIA, CUDA C++ Programming Guide, "Binary Compatibility"). */
bool mlo_sm_runs(int gpu, int code);

#endif
