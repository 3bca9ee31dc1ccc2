/* .npz archives. An input that is no zip is taken for the .npy inside of one, so that its header is reached
 * without a checksum to guess: two copies of it become the arrays x and y. */
#include <stdio.h>

#include <zlib.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_data.h"

static void put(struct mlo_buf *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++, value >>= 8)
        mlo_buf_putc(out, (char)value);
}

/* One stored member, by PKWARE's APPNOTE 4.3: the local header and data, or the directory's entry. */
static void member(struct mlo_buf *out, const char *name, const uint8_t *data, size_t size, bool directory,
                   size_t offset)
{
    put(out, directory ? 0x02014b50 : 0x04034b50, 4);
    if (directory)
        put(out, 20, 2);
    put(out, 20, 2); /* version needed */
    put(out, 0, 2);  /* flags */
    put(out, 0, 2);  /* stored */
    put(out, 0x00210000, 4);
    put(out, crc32(0, data, (uInt)size), 4);
    put(out, size, 4);
    put(out, size, 4);
    put(out, strlen(name), 2);
    put(out, 0, 2);
    if (directory) {
        put(out, 0, 10); /* comment, disk, attributes */
        put(out, offset, 4);
    }
    mlo_buf_puts(out, name);
    if (!directory)
        mlo_buf_append(out, data, size);
}

static const char *wrap(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"x.npy", "y.npy"};
    struct mlo_buf zip = MLO_BUF_INIT;
    size_t offsets[MLO_COUNT(names)];
    for (size_t i = 0; i < MLO_COUNT(names); i++) {
        offsets[i] = zip.len;
        member(&zip, names[i], data, size, false, 0);
    }
    size_t directory = zip.len;
    for (size_t i = 0; i < MLO_COUNT(names); i++)
        member(&zip, names[i], data, size, true, offsets[i]);
    size_t end = zip.len;
    put(&zip, 0x06054b50, 4);
    put(&zip, 0, 4);
    put(&zip, MLO_COUNT(names), 2);
    put(&zip, MLO_COUNT(names), 2);
    put(&zip, end - directory, 4);
    put(&zip, directory, 4);
    put(&zip, 0, 2);
    const char *path = fuzz_file("d.npz", mlo_buf_str(&zip), zip.len);
    mlo_buf_clear(&zip);
    return path;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool zip = size >= 2 && memcmp(data, "PK", 2) == 0;
    fuzz_dataset(zip ? fuzz_file("d.npz", data, size) : wrap(data, size));
    return 0;
}
