/* Private to the driver of own products: what a step keeps. All of it follows from the product, the machine
 * and the number of threads, so that a plan's file has the product only. */
#ifndef MLO_ENGINES_CPU_FAST_TILING_IMPL_H
#define MLO_ENGINES_CPU_FAST_TILING_IMPL_H

#include "engines/cpu/fast/tile_impl.h"

enum { IN_X, IN_PANELS, IN_BIAS, IN_SCALE, IN_INIT, IN_RESIDUAL, IN_COUNT };

enum { TILING_BLOCK_MAX = 128 }; /* tiles: where they are is found once for all panels */

/* The source with its border, in scratch memory. */
struct border {
    bool copy;
    size_t images;
    size_t from[3], to[3], pad[3]; /* pixels by dim: of x, with border (or cut), in front */
    size_t pixel_bytes, bytes;     /* of a pixel, of all */
    size_t source_bytes;           /* of a pixel of x */
    uint8_t fill;
    /* Fixed point: units stand behind the copy, one for each of its pixels where an output reads one pixel,
     * else one for each line. */
    bool by_pixel;
    size_t units_offset;
};

struct tiling {
    struct tile_product product;   /* without its pointers */
    struct tile_epilogue epilogue; /* the product's, as the kernels have it; without what columns have */
    struct tile_swish swish;
    bool staged; /* rows of floats go through posts before they are quantized */
    struct tile_panels panels;
    struct border border;
    bool by_line; /* a tile is of one line of the output: lines.c asks for some of them */
    /* Rows of the output lie in lines: runs of rows that are x_stride apart in x. */
    size_t lines, line_rows;
    size_t counts[2]; /* lines by depth and height (the slowest is the image) */
    size_t steps[3];  /* bytes from line to line: by image, depth, height */
    size_t x_stride, x_group;
    size_t y_element, y_stride, residual_element, residual_stride;
    size_t rows_max, tiles_per_line;  /* 0: a tile is two lines */
    size_t part_rows, longer_parts;   /* rows of a tile within a line; the first ones have one more */
    size_t tiles, block_tiles;        /* tiles that one pass over the panels works on */
    size_t block_depth;               /* groups of depth of a pass: all, or a part where there is one tap */
    size_t split_tiles, split_panels; /* parts for threads */
    size_t cycles;                    /* that one thread takes, right to a factor of two */
    const ptrdiff_t *unit_taps;       /* fixed point: by tap, in units */
    ptrdiff_t taps[];
};

/* NULL: none. */
const struct tile_kernels *tiling_kernels(enum tile_type type, const struct mlo_plan *plan);

/* Every output reads the pixel of x that is in its own place. */
bool tiling_is_plain(const struct tile_product *p);
/* A new tiling; `roomy`: 64 bytes behind x may be read. NULL: no memory. The product's numbers are positive
 * where they must be and small enough for their products not to overflow. */
struct tiling *tiling_new(const struct mlo_plan *plan, const struct tile_product *product, bool roomy);
/* The same by lines; NULL also where they are too short. */
struct tiling *tiling_new_by_line(const struct mlo_plan *plan, const struct tile_product *product);
/* Where the operands of a tiling by lines are. Only the lines that are read and written need be there:
 * `x` and `y` are where the first line would be. */
struct tiling_lines {
    const void *x;
    const char *panels, *residual;
    const float *bias;
    char *y,
        *border; /* border: room for the lines of x that `lines` of the output read, where there is one */
};
size_t tiling_border_bytes(const struct tiling *s, size_t lines);
/* Lines [begin, end) of the output, which are of one image. */
void tiling_run_lines(const struct mlo_plan *plan, const struct tiling *s, const struct tiling_lines *at,
                      size_t begin, size_t end);
extern const struct cpu_step_class fast_tile_class;

/* --- tile_image.c: products in a plan's file ------------------------------------------------------------ */

struct cpu_writer;
struct cpu_reader;
void tile_product_save(struct cpu_writer *w, const struct tile_product *p);
/* Into a product that is zero but for its residual's slot; fails the reader where the numbers cannot be. */
void tile_product_restore(struct cpu_reader *r, struct tile_product *p);
/* Elements of so many pixels times two sizes; SIZE_MAX when there are more than any slot has. */
size_t tile_volume(const int64_t dims[3], size_t first, size_t second);

#endif
