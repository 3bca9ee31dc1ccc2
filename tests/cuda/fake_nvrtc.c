/* A library with NVRTC's functions that compiles nothing: an image holds the text, and as many registers as
 * the text has lines (at most 255). */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nvrtc.h>

#include "base/base.h"
#include "tests/cuda/fake_cuda.h"

struct _nvrtcProgram {
    char *text;
    struct mlo_buf image;
};

nvrtcResult nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 99;
    return NVRTC_SUCCESS;
}

const char *nvrtcGetErrorString(nvrtcResult result)
{
    return result == NVRTC_SUCCESS ? "success" : "failure";
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *text, const char *name, int headers,
                               const char *const *sources, const char *const *names)
{
    (void)name, (void)headers, (void)sources, (void)names;
    *out = calloc(1, sizeof **out);
    (*out)->text = strdup(text);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program)
{
    free((*program)->text);
    mlo_buf_clear(&(*program)->image);
    free(*program);
    *program = NULL;
    return NVRTC_SUCCESS;
}

/* The name behind the launch bounds, or behind "void". */
static void entry_of(const char *text, char out[64])
{
    const char *at = strstr(text, "__global__");
    out[0] = 0;
    for (const char *c = at; c && *c && *c != '{'; c++) {
        size_t n = strspn(c, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        if (n && n < 64 && c[n] == '(' && strncmp(c, "__launch_bounds__", n) != 0) {
            memcpy(out, c, n);
            out[n] = 0;
            return;
        }
        c += n ? n - 1 : 0;
    }
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int count, const char *const *options)
{
    enum { NULL_SECTION, NAMES, STRINGS, SYMBOLS, INFO, TEXT, SECTIONS };
    static const char names[] = "\0.shstrtab\0.strtab\0.symtab\0.nv.info\0" FAKE_TEXT_SECTION;
    static const unsigned name_at[SECTIONS] = {0, 1, 11, 19, 27, 36};
    Elf64_Shdr s[SECTIONS] = {{0}};
    char entry[64], strings[66] = "";
    (void)count, (void)options;
    entry_of(p->text, entry);
    if (!entry[0] || strstr(p->text, "#error") || getenv("FAKE_NVRTC_REFUSES"))
        return NVRTC_ERROR_COMPILATION;
    memcpy(strings + 1, entry, strlen(entry) + 1);
    Elf64_Sym symbols[2] = {{0},
                            {.st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), .st_shndx = TEXT}};
    unsigned lines = 1;
    for (const char *c = p->text; *c; c++)
        lines += *c == '\n';
    unsigned info[6] = {0x00082f04, 1, MLO_MIN(lines, 255u), 0x00081104, 1, 0}; /* REGCOUNT, FRAME_SIZE */
    const struct {
        const void *bytes;
        size_t size;
        unsigned type, link;
    } parts[SECTIONS] = {
        [NAMES] = {names, sizeof names, SHT_STRTAB, 0},
        [STRINGS] = {strings, strlen(entry) + 2, SHT_STRTAB, 0},
        [SYMBOLS] = {symbols, sizeof symbols, SHT_SYMTAB, STRINGS},
        [INFO] = {info, sizeof info, SHT_PROGBITS, 0},
        [TEXT] = {p->text, strlen(p->text) + 1, SHT_PROGBITS, 0},
    };
    Elf64_Ehdr head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                       .e_type = ET_EXEC,
                       .e_machine = 190,
                       .e_version = EV_CURRENT,
                       .e_ehsize = sizeof head,
                       .e_shentsize = sizeof s[0],
                       .e_shnum = SECTIONS,
                       .e_shstrndx = NAMES};
    size_t at = sizeof head;
    for (int i = 1; i < SECTIONS; i++) {
        s[i] = (Elf64_Shdr){.sh_name = name_at[i],
                            .sh_type = parts[i].type,
                            .sh_offset = at,
                            .sh_size = parts[i].size,
                            .sh_link = parts[i].link};
        at += parts[i].size;
    }
    head.e_shoff = at;
    mlo_buf_append(&p->image, &head, sizeof head);
    for (int i = 1; i < SECTIONS; i++)
        mlo_buf_append(&p->image, parts[i].bytes, parts[i].size);
    mlo_buf_append(&p->image, s, sizeof s);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *size)
{
    (void)p;
    *size = sizeof "kernel.cu(1): error: no kernel";
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *log)
{
    (void)p;
    memcpy(log, "kernel.cu(1): error: no kernel", sizeof "kernel.cu(1): error: no kernel");
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *size)
{
    *size = p->image.len;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *image)
{
    memcpy(image, p->image.data, p->image.len);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    *count = 2;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int *archs)
{
    archs[0] = 80;
    archs[1] = 90;
    return NVRTC_SUCCESS;
}
