/* A mutator that knows the protobuf wire format: it changes one field and corrects the lengths of all that
 * encloses it, so that what comes out is mostly still a model. Changes of bytes alone rarely get past the
 * first wrong length. Which bytes are messages is guessed: all that parse as fields. */
#include "graph/graph.h"
#include "tests/fuzz/fuzz.h"

enum { FIELDS_MAX = 4096, DEPTH_MAX = 16, NUMBER_MAX = 40 };

struct field {
    size_t start, payload, end; /* of its tag; of its content; behind it */
    uint32_t number;
    int wire, parent; /* -1: the model itself */
    bool leaf;
};

struct fields {
    const uint8_t *bytes;
    struct field items[FIELDS_MAX];
    int count;
};

static uint64_t random_state;

static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static size_t below(size_t bound)
{
    return (size_t)((random_next() >> 11) % bound);
}

static bool read_varint(const uint8_t *bytes, size_t *at, size_t end, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = bytes[(*at)++];
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static void put_varint(struct mlo_buf *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        mlo_buf_putc(out, (char)(value | 0x80));
    mlo_buf_putc(out, (char)value);
}

static bool read_field(const uint8_t *bytes, size_t *at, size_t end, struct field *f)
{
    uint64_t tag, value;
    f->start = *at;
    if (!read_varint(bytes, at, end, &tag) || tag >> 3 == 0 || tag >> 3 > NUMBER_MAX)
        return false;
    f->number = (uint32_t)(tag >> 3);
    f->wire = (int)(tag & 7);
    f->payload = *at;
    f->leaf = true;
    switch (f->wire) {
    case 0:
        if (!read_varint(bytes, at, end, &value))
            return false;
        break;
    case 1:
    case 5:
        value = f->wire == 1 ? 8 : 4;
        if (value > end - *at)
            return false;
        *at += (size_t)value;
        break;
    case 2:
        if (!read_varint(bytes, at, end, &value) || value > end - *at)
            return false;
        f->payload = *at;
        *at += (size_t)value;
        break;
    default:
        return false;
    }
    f->end = *at;
    return true;
}

/* Collects the fields of a message; false, and none of them, when it is none. */
static bool collect(struct fields *all, size_t at, size_t end, int parent, int depth)
{
    int before = all->count;
    while (at < end) {
        if (all->count == FIELDS_MAX)
            return true;
        struct field f;
        if (!read_field(all->bytes, &at, end, &f)) {
            all->count = before;
            return false;
        }
        f.parent = parent;
        int index = all->count++;
        all->items[index] = f;
        if (f.wire == 2 && f.end - f.payload >= 2 && depth < DEPTH_MAX)
            all->items[index].leaf = !collect(all, f.payload, f.end, index, depth + 1);
    }
    return true;
}

static uint64_t other_number(uint64_t old)
{
    static const uint64_t edges[] = {UINT64_MAX,
                                     (uint64_t)-2,
                                     INT64_MAX,
                                     (uint64_t)INT64_MIN,
                                     1ull << 31,
                                     INT32_MAX,
                                     1ull << 32,
                                     1ull << 62,
                                     65536,
                                     255,
                                     1ull << 20,
                                     (uint64_t)-8,
                                     (uint64_t)INT32_MIN};
    switch (below(4)) {
    case 0:
        return old + 1 - 2 * below(2);
    case 1:
        return edges[below(MLO_COUNT(edges))];
    default:
        return below(24);
    }
}

/* A random field that could stand in f's place: of its number and kind when one is found soon. */
static const struct field *like(const struct fields *all, const struct field *f)
{
    const struct field *other = f;
    for (int i = 0; i < 16; i++) {
        other = &all->items[below((size_t)all->count)];
        if (other != f && other->number == f->number && other->wire == f->wire)
            break;
    }
    return other;
}

static void put_bytes(struct mlo_buf *out, uint32_t number, const void *bytes, size_t size)
{
    put_varint(out, (uint64_t)number << 3 | 2);
    put_varint(out, size);
    mlo_buf_append(out, bytes, size);
}

static bool is_op(const uint8_t *bytes, size_t size)
{
    char name[64];
    if (size == 0 || size >= sizeof name)
        return false;
    memcpy(name, bytes, size);
    name[size] = '\0';
    return mlo_op_known("", name);
}

/* A scalar, a string, or packed numbers: another value. */
static void change_leaf(const uint8_t *bytes, const struct field *f, struct mlo_buf *out)
{
    enum { MORE = 40 };
    size_t at = f->payload, size = f->end - f->payload, count;
    uint64_t value = 0;
    if (f->wire == 0) {
        (void)read_varint(bytes, &at, f->end, &value);
        put_varint(out, (uint64_t)f->number << 3);
        put_varint(out, other_number(value));
        return;
    }
    if (f->wire != 2) {
        uint8_t raw[8];
        memcpy(raw, bytes + f->payload, size);
        LLVMFuzzerMutate(raw, size, size);
        mlo_buf_append(out, bytes + f->start, f->payload - f->start);
        mlo_buf_append(out, raw, size);
        return;
    }
    if (is_op(bytes + f->payload, size) && below(4) != 0) {
        const struct mlo_op *ops = mlo_op_table(&count);
        const char *name = ops[below(count)].name;
        put_bytes(out, f->number, name, strlen(name));
        return;
    }
    uint8_t *room = malloc(size + MORE);
    if (!room)
        return;
    memcpy(room, bytes + f->payload, size);
    size_t now = LLVMFuzzerMutate(room, size, size + MORE);
    put_bytes(out, f->number, room, now);
    free(room);
}

/* What comes in the place of field f, tag and all. */
static void change(const struct fields *all, const struct field *f, struct mlo_buf *out)
{
    const uint8_t *bytes = all->bytes;
    const struct field *other = like(all, f);
    size_t what = below(10);
    if (what < 5 && f->leaf) {
        change_leaf(bytes, f, out);
        return;
    }
    if (what == 9)
        return;    /* it goes */
    if (what == 8) /* twice */
        mlo_buf_append(out, bytes + f->start, f->end - f->start);
    if (what == 7) /* another one in front of it */
        mlo_buf_append(out, bytes + other->start, other->end - other->start);
    if (what < 7) /* another one instead of it, often under its own number */
        f = other->wire == f->wire || below(4) == 0 ? other : f;
    mlo_buf_append(out, bytes + f->start, f->end - f->start);
}

static bool mutate_field(const struct fields *all, size_t size, struct mlo_buf *out)
{
    const uint8_t *bytes = all->bytes;
    struct mlo_buf inner = MLO_BUF_INIT, content = MLO_BUF_INIT;
    const struct field *f = &all->items[below((size_t)all->count)];
    change(all, f, &inner);
    for (; f->parent >= 0; f = &all->items[f->parent]) {
        const struct field *p = &all->items[f->parent];
        mlo_buf_reset(&content);
        mlo_buf_append(&content, bytes + p->payload, f->start - p->payload);
        mlo_buf_append(&content, mlo_buf_str(&inner), inner.len);
        mlo_buf_append(&content, bytes + f->end, p->end - f->end);
        mlo_buf_reset(&inner);
        put_bytes(&inner, p->number, mlo_buf_str(&content), content.len);
    }
    mlo_buf_append(out, bytes, f->start);
    mlo_buf_append(out, mlo_buf_str(&inner), inner.len);
    mlo_buf_append(out, bytes + f->end, size - f->end);
    bool ok = mlo_buf_ok(&inner) && mlo_buf_ok(&content) && mlo_buf_ok(out);
    mlo_buf_clear(&inner);
    mlo_buf_clear(&content);
    return ok;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static struct fields all;
    struct mlo_buf out = MLO_BUF_INIT;
    random_state = ((uint64_t)seed + 1) * 0x9e3779b97f4a7c15u;
    all.bytes = data;
    all.count = 0;
    size_t result = 0;
    if (below(16) != 0 && collect(&all, 0, size, -1, 0) && all.count > 0 && mutate_field(&all, size, &out) &&
        out.len > 0 && out.len <= max_size) {
        memcpy(data, out.data, out.len);
        result = out.len;
    }
    mlo_buf_clear(&out);
    return result ? result : LLVMFuzzerMutate(data, size, max_size);
}
