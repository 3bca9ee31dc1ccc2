/* Private to the invariant convolution: where its columns are read. conv_shape.c decides, conv.c runs.
 *
 * Input with a border, or strides, is copied first, with zeros around it, in parts that each hold what
 * neighbouring outputs multiply with one weight: line by line of `pitch` floats.
 *
 *   copies  strides  spread   parts of a plane
 *   no                        none: x is read where it is
 *   yes     1        no       one; zeros behind a line are those before the next one, too (`shared`)
 *   yes     1        yes      one for each column of the kernel, lines as long as the output's: short lines
 *   yes     > 1      no       one for each row and column of the strides
 *
 * Where `pitch` is not much more than a line of outputs, the places between two lines are computed as if they
 * were outputs (joined): a plane is one run of columns then. Without packing (direct) only those are read. */
#ifndef MLO_ENGINES_CPU_INVARIANT_CONV_IMPL_H
#define MLO_ENGINES_CPU_INVARIANT_CONV_IMPL_H

#include "engines/cpu/invariant/invariant_impl.h"
#include "engines/cpu/invariant/post_impl.h"

/* A copy of some of a plane: lines of `count` floats, beside zeros when they are bordered. */
struct part {
    size_t at;                          /* in the copies of a plane */
    size_t zeros_before, first, behind; /* zeros in front; the first line, and behind the last one */
    size_t lines, column, count;
    int64_t from; /* in the plane */
    bool bordered;
};

struct conv {
    const struct inv_kernels *kernels;
    int64_t n, groups, icg, ocg;    /* channels per group */
    int64_t ih, iw, oh, ow, kh, kw; /* one-dimensional ones have height 1 */
    int64_t sh, sw, dh, dw, ph, pw;
    size_t depth, rows; /* icg*kh*kw, and ocg rounded up to tiles */
    const float *weights;
    const float *bias; /* or NULL */
    bool by_planes;    /* plane by plane */
    /* Where columns are read: the input, or a copy in the program's scratch memory (by_planes: the worker's).
     */
    bool copies, joined;
    bool spread;          /* a part for each column of the kernel: lines need no border beside them */
    int64_t across;       /* parts for a phase of lines */
    bool direct;          /* a panel that is one run is not packed */
    int64_t lines, pitch; /* of a part: lines, and floats from one to the next */
    size_t part, plane;   /* floats of a part, and of all parts of a channel */
    struct part *parts;   /* those that weights meet */
    int part_count;
    int64_t pixels;  /* of an output plane, with those in between when rows are joined */
    size_t *offsets; /* [depth]: of an output's first input */
    bool scaled; /* the input is the product of two, the second of which has a number for each channel of a
                    sample */
    struct inv_post post;
};

static inline size_t inv_conv_channels(const struct conv *c)
{
    return (size_t)(c->groups * c->icg);
}
/* Fills in what follows from kernels, n, groups, icg, ocg and by_planes. False: the weights lie so far apart
 * that a copy of the input, with its border, would be of no possible size. */
bool inv_conv_shape(struct conv *c, const struct mlo_window *w);
/* Fills in parts and offsets, which are the caller's to free. False: no memory. */
bool inv_conv_places(struct conv *c);
/* Of the copy of all planes; SIZE_MAX: no memory is as large. */
size_t inv_conv_copy_bytes(const struct conv *c);

#endif
