/* Weights of a product cut into panels: which columns are where, and packing them at compile time. */
#include <string.h>

#include "engines/cpu/fast/tile_impl.h"

/* Rows that lie next to each other in x, which tiles divide. */
static size_t line_of(const struct tile_product *p)
{
    size_t rows = (size_t)p->batch;
    bool plain = true;
    for (int i = 0; i < 3; i++) {
        plain &= p->kernel[i] == 1 && p->stride[i] == 1 && p->pad[i] == 0 && p->in[i] == p->out[i];
        rows *= (size_t)p->out[i];
    }
    return plain ? rows : (size_t)p->out[2];
}

void tile_panels_init(struct tile_panels *out, const struct tile_kernels *kernels,
                      const struct tile_product *p)
{
    size_t positions = (size_t)(p->kernel[0] * p->kernel[1] * p->kernel[2]), row = (size_t)p->kernel[2];
    bool rows = p->groups == 1 && p->dilation[2] == 1; /* a kernel row's elements are neighbours */
    size_t channels = (size_t)p->in_channels, whole = kernels->group_depth;
    if (kernels->whole_groups)
        channels = (channels + whole - 1) / whole * whole;
    *out = (struct tile_panels){.groups = (size_t)p->groups,
                                .columns = (size_t)p->out_channels,
                                .channels = channels,
                                .group_bytes = kernels->group_bytes,
                                .group_depth = kernels->group_depth};
    out->taps = rows ? positions / row : positions;
    out->tap_elements = out->channels * (rows ? row : 1);
    out->depth = (out->tap_elements + out->group_depth - 1) / out->group_depth;
    /* The width with the least padding; of equals one for all columns, unless the kernels say otherwise, then
     * (int8) that of the fewest tiles, since a short line may be one tile of narrow panels and two of wide
     * ones; then the widest, whose tiles read less. */
    size_t least = SIZE_MAX, least_tiles = SIZE_MAX, line = line_of(p);
    for (int i = kernels->width_count - 1; i >= 0; i--) {
        size_t width = kernels->widths[i], full = out->columns / width, rest = out->columns % width;
        int tail = i;
        for (int k = i; rest && k >= 0; k--)
            if (kernels->widths[k] >= rest)
                tail = k;
        size_t padded = full * width + (rest ? kernels->widths[tail] : 0);
        size_t cost = 2 * padded + (rest && tail != i && !(kernels->narrow_tail && full));
        size_t rows_max = (size_t)kernels->rows_max[i],
               tiles = tile_is_int8(p) ? (full + (rest != 0)) * ((line + rows_max - 1) / rows_max) : 0;
        if (cost > least || (cost == least && tiles >= least_tiles))
            continue;
        least = cost;
        least_tiles = tiles;
        out->width_index = i;
        out->tail_index = rest ? tail : i;
        out->width = width;
        out->tail = kernels->widths[out->tail_index];
        out->per_group = full + (rest != 0);
        out->padded = padded;
    }
}

size_t tile_panels_bytes(const struct tile_panels *panels)
{
    return panels->groups * panels->padded * panels->taps * panels->depth * panels->group_bytes;
}

struct tile_panel tile_panel_at(const struct tile_panels *panels, size_t index)
{
    size_t group = fast_quotient(index, panels->per_group), i = index - group * panels->per_group;
    size_t first = i * panels->width;
    bool last = i + 1 == panels->per_group;
    size_t width = last ? panels->tail : panels->width;
    return (struct tile_panel){.group = group,
                               .first = first,
                               .columns = MLO_MIN(width, panels->columns - first),
                               .padded_first = group * panels->padded + first,
                               .offset_bytes = (group * panels->padded + first) * panels->taps *
                                               panels->depth * panels->group_bytes,
                               .width_index = last ? panels->tail_index : panels->width_index};
}

/* One panel: [tap][depth][width] groups of elements; `out` is zeroed. */
static void pack_panel(const struct tile_panels *panels, const struct tile_product *p,
                       const struct tile_panel *panel, size_t width, char *out)
{
    size_t element = panels->group_bytes / panels->group_depth;
    size_t positions = panels->tap_elements / panels->channels;
    for (size_t tap = 0; tap < panels->taps; tap++, out += panels->depth * width * panels->group_bytes)
        for (size_t column = 0; column < panel->columns; column++) {
            const char *from = (const char *)p->weights +
                               (panel->group * panels->columns + panel->first + column) * p->w_out * element;
            for (size_t t = 0; t < positions; t++)
                for (size_t c = 0, d = t * panels->channels; c < (size_t)p->in_channels; c++, d++) {
                    char *to = out + (d / panels->group_depth * width + column) * panels->group_bytes +
                               d % panels->group_depth * element;
                    memcpy(to, from + (c * p->w_in + (tap * positions + t) * p->w_tap) * element, element);
                }
        }
}

void tile_pack(const struct tile_panels *panels, const struct tile_product *p, char *out)
{
    for (size_t i = 0; i < panels->groups * panels->per_group; i++) {
        struct tile_panel panel = tile_panel_at(panels, i);
        bool last = i % panels->per_group + 1 == panels->per_group;
        pack_panel(panels, p, &panel, last ? panels->tail : panels->width, out + panel.offset_bytes);
    }
}
