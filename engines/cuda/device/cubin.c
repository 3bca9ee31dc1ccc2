/* What a compiled kernel takes, out of its image: an ELF file whose sections .nv.info hold attributes
 * (format, attribute, size or value, then bytes), of which two are pairs of a symbol and a number. */
#include <elf.h>
#include <string.h>

#include "engines/cuda/device/device_impl.h"

enum {
    MACHINE_CUDA = 190,
    INFO_SIZED = 4, /* the third and fourth byte are the size of what follows */
    INFO_REGISTERS = 0x2f,
    INFO_FRAME = 0x11
};

struct image {
    const unsigned char *bytes;
    size_t size;
    Elf64_Shdr names;
    size_t table, count;
};

/* A range of the file; NULL when it is not inside. */
static const void *range(const struct image *m, uint64_t offset, uint64_t size)
{
    return offset <= m->size && size <= m->size - offset ? m->bytes + offset : NULL;
}

static bool section(const struct image *m, size_t i, Elf64_Shdr *out)
{
    const void *p = i < m->count ? range(m, m->table + i * sizeof *out, sizeof *out) : NULL;
    if (p)
        memcpy(out, p, sizeof *out);
    return p != NULL;
}

/* A name in a table of strings, ended inside of it; "" when it is not. */
static const char *text(const struct image *m, const Elf64_Shdr *strings, uint64_t at)
{
    const char *p = strings->sh_type == SHT_STRTAB ? range(m, strings->sh_offset, strings->sh_size) : NULL;
    return p && at < strings->sh_size && memchr(p + at, 0, strings->sh_size - at) ? p + at : "";
}

/* What the file says that it holds is there: who loads it is not told how long it is. */
static bool is_whole(const struct image *m, const Elf64_Ehdr *head)
{
    Elf64_Shdr s;
    Elf64_Phdr p;
    for (size_t i = 0; section(m, i, &s); i++)
        if (s.sh_type != SHT_NULL && s.sh_type != SHT_NOBITS && !range(m, s.sh_offset, s.sh_size))
            return false;
    if (head->e_phnum && (head->e_phentsize != sizeof p || head->e_phoff > m->size ||
                          !range(m, head->e_phoff, head->e_phnum * sizeof p)))
        return false;
    for (size_t i = 0; i < head->e_phnum; i++) {
        memcpy(&p, m->bytes + head->e_phoff + i * sizeof p, sizeof p);
        if (p.p_filesz && !range(m, p.p_offset, p.p_filesz))
            return false;
    }
    return true;
}

static bool open_image(struct image *m, const void *bytes, size_t size)
{
    Elf64_Ehdr head;
    *m = (struct image){.bytes = bytes, .size = size};
    if (size < sizeof head)
        return false;
    memcpy(&head, bytes, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
        head.e_ident[EI_DATA] != ELFDATA2LSB || head.e_machine != MACHINE_CUDA ||
        head.e_shentsize != sizeof(Elf64_Shdr) || head.e_shoff > size)
        return false;
    m->table = head.e_shoff;
    m->count = head.e_shnum;
    return range(m, m->table, m->count * sizeof(Elf64_Shdr)) && section(m, head.e_shstrndx, &m->names) &&
           is_whole(m, &head);
}

/* The number of the symbol `name`; 0: there is none (the first is always empty). */
static uint32_t symbol_of(const struct image *m, const char *name)
{
    Elf64_Shdr table, strings;
    for (size_t i = 0; section(m, i, &table); i++) {
        if (table.sh_type != SHT_SYMTAB || !section(m, table.sh_link, &strings))
            continue;
        for (uint64_t k = 1; k < table.sh_size / sizeof(Elf64_Sym); k++) {
            Elf64_Sym symbol;
            const void *p = range(m, table.sh_offset + k * sizeof symbol, sizeof symbol);
            if (!p)
                return 0;
            memcpy(&symbol, p, sizeof symbol);
            if (strcmp(text(m, &strings, symbol.st_name), name) == 0)
                return (uint32_t)k;
        }
        return 0;
    }
    return 0;
}

static bool read_info(const struct image *m, const Elf64_Shdr *s, uint32_t symbol, struct cuda_resources *out,
                      bool *found)
{
    const unsigned char *p = range(m, s->sh_offset, s->sh_size);
    for (uint64_t at = 0; p && at + 4 <= s->sh_size;) {
        unsigned format = p[at], attribute = p[at + 1];
        uint64_t size = format == INFO_SIZED ? (uint64_t)p[at + 2] | (uint64_t)p[at + 3] << 8 : 0;
        if (size > s->sh_size - at - 4)
            return false;
        uint32_t pair[2];
        if (size >= sizeof pair) {
            memcpy(pair, p + at + 4, sizeof pair);
            if (pair[0] == symbol && attribute == INFO_REGISTERS) {
                out->registers = pair[1];
                *found = true;
            } else if (pair[0] == symbol && attribute == INFO_FRAME) {
                out->frame_bytes = pair[1];
            }
        }
        at += 4 + size;
    }
    return p != NULL;
}

enum mlo_status cuda_cubin_read(const void *bytes, size_t size, const char *entry, struct cuda_resources *out,
                                struct mlo_error *err)
{
    struct image m;
    Elf64_Shdr s;
    static const char shared[] = ".nv.shared.";
    bool found = false, good = open_image(&m, bytes, size);
    uint32_t symbol = good ? symbol_of(&m, entry) : 0;
    *out = (struct cuda_resources){0};
    for (size_t i = 0; good && symbol && section(&m, i, &s); i++) {
        const char *name = text(&m, &m.names, s.sh_name);
        if (strcmp(name, ".nv.info") == 0)
            good = read_info(&m, &s, symbol, out, &found);
        else if (strncmp(name, shared, strlen(shared)) == 0 && strcmp(name + strlen(shared), entry) == 0)
            out->shared_bytes = s.sh_size <= UINT32_MAX ? (unsigned)s.sh_size : UINT32_MAX;
    }
    if (good && found)
        return MLO_OK;
    *out = (struct cuda_resources){0};
    return mlo_error_set(err, MLO_EFORMAT, "the image of kernel '%s' is no cubin, or is damaged", entry);
}
