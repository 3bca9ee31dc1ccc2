/* Where an invariant convolution reads its columns: conv_impl.h. A model may say any strides, pads and
 * dilations: nothing here takes longer than the weights are many, or counts further than 63 bits. */
#include <stdlib.h>

#include "engines/cpu/invariant/conv_impl.h"

enum {
    SHORT = 16,       /* a line that a border makes noticeably longer */
    SPREAD = 1 << 18, /* floats of a sample's group */
};

/* Vectors of all samples' planes of so many pixels; false: there is no such number. */
static bool vectors_of(const struct conv *c, int64_t pixels, int64_t *vectors)
{
    int64_t all;
    if (__builtin_mul_overflow(c->n, pixels, &all))
        return false;
    *vectors = (all - 1) / c->kernels->lanes + 1;
    return true;
}

/* With the places between lines of outputs. */
static bool joined_pixels(const struct conv *c, int64_t *pixels)
{
    return !__builtin_mul_overflow(c->oh - 1, c->pitch, pixels) &&
           !__builtin_add_overflow(*pixels, c->ow, pixels);
}

/* Whether a plane's outputs, beside each other, take fewer vectors than joined lines, and their copies stay
 * in the second-level cache. */
static bool may_spread(const struct conv *c)
{
    const int64_t most[] = {c->lines, c->sh, c->ow, c->kw, c->icg};
    int64_t size = SPREAD, pixels, joined, apart;
    if (!c->copies || c->by_planes || c->sw != 1 || c->ow > SHORT)
        return false;
    for (size_t i = 0; i < MLO_COUNT(most); i++)
        size /= MLO_MAX(most[i], 1);
    return size > 0 && joined_pixels(c, &pixels) && vectors_of(c, pixels, &joined) &&
           vectors_of(c, c->oh * c->ow, &apart) && apart < joined;
}

/* Heights are 1 in front for one-dimensional ones. */
static void take_window(struct conv *c, const struct mlo_window *w)
{
    int last = w->spatial - 1;
    c->ih = c->oh = c->kh = c->sh = c->dh = 1;
    c->ph = 0;
    if (w->spatial == 2) {
        c->ih = w->in[0], c->oh = w->out[0], c->kh = w->kernel[0];
        c->sh = w->stride[0], c->dh = w->dilation[0], c->ph = w->pad_begin[0];
    }
    c->iw = w->in[last], c->ow = w->out[last], c->kw = w->kernel[last];
    c->sw = w->stride[last], c->dw = w->dilation[last], c->pw = w->pad_begin[last];
    c->sh = c->oh > 1 ? c->sh : 1; /* nobody takes it, and there would be as many parts */
    c->sw = c->ow > 1 ? c->sw : 1;
    c->depth = (size_t)(c->icg * c->kh * c->kw);
    bool at_once = c->sh == 1 && c->sw == 1 && c->ph == 0 && c->pw == 0;
    if (at_once && c->kh == 1 && c->kw == 1 && c->oh == c->ih && c->ow == c->iw) {
        c->iw = c->ow = c->ih * c->iw; /* a plane is one line */
        c->ih = c->oh = 1;
    }
}

bool inv_conv_shape(struct conv *c, const struct mlo_window *w)
{
    take_window(c, w);
    int64_t width = (c->ow - 1) * c->sw + (c->kw - 1) * c->dw + 1;
    int64_t height = (c->oh - 1) * c->sh + (c->kh - 1) * c->dh + 1;
    c->copies = c->by_planes ||
                !(c->sh == 1 && c->sw == 1 && c->ph == 0 && c->pw == 0 && width <= c->iw && height <= c->ih);
    c->lines = c->copies ? (height + c->sh - 1) / c->sh : c->ih;
    c->pitch = c->copies ? (width + c->sw - 1) / c->sw : c->iw;
    int64_t part, plane, group, shared = 0;
    c->across = c->sw;
    if (c->copies && c->sw == 1)
        shared = MLO_MAX(MLO_MIN(MLO_MIN(c->pw, width - c->pw - c->iw), width - c->ow), 0);
    c->pitch -= shared;
    c->spread = may_spread(c);
    if (c->spread) {
        c->across = c->kw;
        c->pitch = c->ow;
        shared = 0;
    }
    if (__builtin_mul_overflow(c->lines, c->pitch, &part) || __builtin_add_overflow(part, shared, &part) ||
        __builtin_mul_overflow(part, c->sh, &plane) || __builtin_mul_overflow(plane, c->across, &plane) ||
        (c->copies && (__builtin_mul_overflow(plane, c->icg, &group) || group > MLO_MAX_DIM)))
        return false;
    c->part = (size_t)part;
    c->plane = (size_t)plane;
    /* Packing costs little beside many rows, which suffer from vectors of columns in between. */
    int64_t pixels, with_gaps, without;
    bool countable = joined_pixels(c, &pixels) && vectors_of(c, pixels, &with_gaps);
    bool as_many = countable && vectors_of(c, c->oh * c->ow, &without) && with_gaps == without;
    c->joined =
        countable && (c->by_planes || c->ocg <= 64 || as_many) && c->pitch - c->ow <= MLO_MAX(c->ow / 4, 4);
    /* Few rows: packing would write and read more than they gain. */
    c->direct = c->joined && c->copies;
    c->pixels = c->joined ? pixels : c->oh * c->ow;
    return true;
}

size_t inv_conv_copy_bytes(const struct conv *c)
{
    size_t planes = (size_t)c->n * inv_conv_channels(c), count, bytes;
    return __builtin_mul_overflow(planes, c->plane, &count) ||
                   __builtin_add_overflow(count, (size_t)c->kernels->nr, &count) ||
                   __builtin_mul_overflow(count, sizeof(float), &bytes)
               ? SIZE_MAX
               : bytes;
}

/* Places p of a part, of `count`, for which p * stride + phase - pad is inside of [0, in). */
static void inside(int64_t stride, int64_t phase, int64_t pad, int64_t in, int64_t count, int64_t *first,
                   int64_t *end)
{
    int64_t shift = pad - phase;
    *first = MLO_MIN(MLO_MAX((shift + stride - 1) / stride, 0), count);
    *end = in + shift <= 0 ? 0 : (in + shift - 1) / stride + 1;
    *end = MLO_MAX(MLO_MIN(*end, count), *first);
}

/* The copy of lines of phase p, for the kernel's column or the columns' phase i. */
static struct part part_of(const struct conv *c, int64_t p, int64_t i)
{
    int64_t line, end, column, stop, q = c->spread ? i * c->dw : i;
    struct part out = {.at = (size_t)(p * c->across + i) * c->part, .bordered = c->sw == 1};
    inside(c->sh, p, c->ph, c->ih, c->lines, &line, &end);
    inside(c->sw, q, c->pw, c->iw, c->pitch, &column, &stop);
    if (line < end && column < stop) {
        out.lines = (size_t)(end - line);
        out.column = (size_t)column;
        out.count = (size_t)(stop - column);
        out.from = (line * c->sh + p - c->ph) * c->iw + column * c->sw + q - c->pw;
        out.first = (size_t)(line * c->pitch);
        out.behind = (size_t)(end * c->pitch);
    }
    bool whole = out.lines * out.count == c->part; /* without any zero */
    out.zeros_before = out.bordered ? out.first : whole ? 0 : c->part;
    out.behind = out.bordered ? out.behind : c->part;
    return out;
}

/* The next phase that a weight meets behind tap k of the kernel, or -1: it begins again. */
static int64_t next_phase(int64_t k, int64_t kernel, int64_t dilation, int64_t stride)
{
    int64_t phase = k < kernel ? k * dilation % stride : 0;
    return k > 0 && phase == 0 ? -1 : phase;
}

bool inv_conv_places(struct conv *c)
{
    c->parts = calloc((size_t)(MLO_MIN(c->sh, c->kh) * c->kw + 1), sizeof *c->parts);
    c->offsets = calloc(c->depth + 1, sizeof *c->offsets);
    if (!c->parts || !c->offsets)
        return false;
    for (int64_t h = 0, p; c->copies && (p = next_phase(h, c->kh, c->dh, c->sh)) >= 0; h++)
        for (int64_t w = 0, i;
             (i = c->spread ? (w < c->kw ? w : -1) : next_phase(w, c->kw, c->dw, c->sw)) >= 0; w++)
            c->parts[c->part_count++] = part_of(c, p, i);
    for (size_t k = 0; k < c->depth; k++) {
        int64_t ic = (int64_t)k / (c->kh * c->kw), h = (int64_t)k / c->kw % c->kh * c->dh,
                w = (int64_t)k % c->kw * c->dw;
        int64_t beside = c->spread ? (int64_t)k % c->kw : w % c->sw, column = c->spread ? 0 : w / c->sw;
        c->offsets[k] = (size_t)ic * c->plane + (size_t)(h % c->sh * c->across + beside) * c->part +
                        (size_t)(h / c->sh * c->pitch + column);
    }
    return true;
}
