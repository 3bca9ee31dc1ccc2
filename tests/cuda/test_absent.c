/* Machines that lack NVIDIA's libraries, and images that are none: clear lines, no crash. */
#include "tests/cuda/cuda_case.h"

static void test_absent__every_library_says_what_and_what_next(void **state)
{
    MLO_UNUSED(state);
    static const char *const files[CUDA_LIBRARIES] = {"libcuda.so.1", "libnvrtc.so.13", "libcudnn_graph.so.9",
                                                      "libcublasLt.so.13"};
    for (int i = 0; i < CUDA_LIBRARIES; i++) {
        const struct cuda_library_state *s = cuda_library_open((enum cuda_library)i);
        assert_false(s->usable);
        assert_int_equal(s->problem.status, MLO_EUNAVAILABLE);
        assert_non_null(strstr(s->problem.message, files[i]));
        assert_true(s->problem.hint[0] != 0);
    }
}

static void test_absent__probe_and_compile_answer_with_a_line(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error problem = {0};
    json_t *found;
    assert_int_equal(cuda_engine.probe(&problem), MLO_EUNAVAILABLE);
    assert_non_null(strstr(problem.message, "driver"));
    assert_int_equal(cuda_engine.can_compile("cuda:sm90", &problem), MLO_EUNAVAILABLE);
    assert_non_null(strstr(problem.message, "NVRTC"));
    assert_int_equal(cuda_engine.can_compile("cpu:avx2", &problem), MLO_EINVAL);
    assert_non_null(strstr(cuda_engine.version(), "absent"));
    MUST(cuda_engine.inventory(&found, err));
    assert_int_equal(json_array_size(json_object_get(found, "parts")), CUDA_LIBRARIES);
    assert_int_equal(json_array_size(json_object_get(found, "gpus")), 0);
    assert_false(mlo_json_bool(json_array_get(json_object_get(found, "parts"), 0), "found", true));
    json_decref(found);
    struct net n = net_new(1);
    int64_t dims[] = {2, 8};
    net_output(&n, net_op(&n, "Relu", net_input(&n, "x", 2, dims), NULL, NULL));
    struct mlo_plan *plan = NULL;
    struct mlo_compile_options o = {.target = "cuda:sm90"}, here = {0}, wrong = {.target = "tpu"},
                               exact = {.target = "cuda:sm90", .numerics = MLO_NUMERICS_INVARIANT};
    assert_int_equal(cuda_engine.compile(n.model, &o, &plan, &problem), MLO_EUNAVAILABLE);
    assert_non_null(strstr(problem.message, "NVRTC"));
    assert_int_equal(cuda_engine.compile(n.model, &here, &plan, &problem), MLO_EUNAVAILABLE);
    assert_int_equal(cuda_engine.compile(n.model, &wrong, &plan, &problem), MLO_EINVAL);
    assert_int_equal(cuda_engine.compile(n.model, &exact, &plan, &problem), MLO_EUNSUPPORTED);
    assert_null(plan);
    mlo_model_free(n.model);
}

/* The engine as a program has it: the row, the plugin it opens, and the same line. */
static void test_absent__the_row_opens_its_plugin(void **state)
{
    MLO_UNUSED(state);
    const struct mlo_engine *row;
    struct mlo_error problem = {0};
    json_t *found;
    MUST(mlo_engine_find("cuda", &row, err));
    assert_int_equal(row->probe(&problem), MLO_EUNAVAILABLE);
    assert_non_null(strstr(problem.message, "driver (libcuda.so.1) is not installed"));
    MUST(row->inventory(&found, err));
    const json_t *plugin = json_array_get(json_object_get(found, "parts"), 0);
    assert_string_equal(mlo_json_str(plugin, "kind", ""), "plugin");
    assert_true(mlo_json_bool(plugin, "found", false));
    assert_int_equal(json_array_size(json_object_get(found, "parts")), 1 + CUDA_LIBRARIES);
    json_decref(found);
}

/* --- images --------------------------------------------------------------------------------------------- */

/* The parts of a cubin that are read: a kernel `k` with 10 registers, 64 bytes of local and 4 KB of shared
 * memory. */
static void put(unsigned char *bytes, size_t at, const void *data, size_t size)
{
    memcpy(bytes + at, data, size);
}

static size_t image(unsigned char *bytes)
{
    static const char names[] = "\0.shstrtab\0.strtab\0.symtab\0.nv.info\0.nv.shared.k";
    static const char strings[] = "\0k";
    static const uint32_t info[] = {0x00082f04, 1, 10, 0x00081104, 1, 64, 0x00003601, 0x00000001};
    static const struct {
        uint32_t name, type;
        uint64_t offset, size;
        uint32_t link;
    } sections[] = {{0, 0, 0, 0, 0},     {1, 3, 64, sizeof names, 0},  {11, 3, 128, sizeof strings, 0},
                    {19, 2, 136, 48, 2}, {27, 1, 184, sizeof info, 0}, {36, 8, 216, 4096, 0}};
    static const unsigned char ident[] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
    uint16_t machine = 190, entry_size = 64, count = 6, index = 1;
    uint64_t table = 216;
    uint32_t symbol = 1;
    memset(bytes, 0, 1024);
    put(bytes, 0, ident, sizeof ident);
    put(bytes, 18, &machine, 2);
    put(bytes, 40, &table, 8);
    put(bytes, 58, &entry_size, 2);
    put(bytes, 60, &count, 2);
    put(bytes, 62, &index, 2);
    put(bytes, 64, names, sizeof names);
    put(bytes, 128, strings, sizeof strings);
    put(bytes, 136 + 24, &symbol, 4);
    put(bytes, 184, info, sizeof info);
    for (size_t i = 0; i < 6; i++) {
        size_t at = 216 + 64 * i;
        put(bytes, at, &sections[i].name, 4);
        put(bytes, at + 4, &sections[i].type, 4);
        put(bytes, at + 24, &sections[i].offset, 8);
        put(bytes, at + 32, &sections[i].size, 8);
        put(bytes, at + 40, &sections[i].link, 4);
    }
    return 216 + 64 * 6;
}

static void test_cubin__is_read_and_no_damage_hurts(void **state)
{
    MLO_UNUSED(state);
    unsigned char bytes[1024];
    size_t size = image(bytes), refused = 0;
    struct cuda_resources r;
    struct mlo_error problem = {0};
    MUST(cuda_cubin_read(bytes, size, "k", &r, err));
    assert_int_equal(r.registers, 10);
    assert_int_equal(r.frame_bytes, 64);
    assert_int_equal(r.shared_bytes, 4096);
    assert_int_equal(cuda_cubin_read(bytes, size, "other", &r, &problem), MLO_EFORMAT);
    assert_non_null(strstr(problem.message, "'other'"));
    assert_int_equal(cuda_cubin_read(NULL, 0, "k", &r, &problem), MLO_EFORMAT);
    for (size_t cut = 0; cut < size; cut++) { /* in a block of its own size, so that a sanitizer sees more */
        unsigned char *part = malloc(cut + 1);
        assert_non_null(part);
        memcpy(part, bytes, cut);
        refused += cuda_cubin_read(part, cut, "k", &r, &problem) == MLO_EFORMAT;
        free(part);
    }
    assert_int_equal(refused, size);
    uint32_t seed = 1;
    for (int round = 0; round < 60000; round++) {
        unsigned char *part = malloc(size);
        assert_non_null(part);
        memcpy(part, bytes, size);
        for (int k = 0; k <= round % 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            part[(seed >> 8) % size] = (unsigned char)(seed >> 3 & (round & 1 ? 0xff : 0x80));
        }
        refused += cuda_cubin_read(part, size, "k", &r, NULL) != MLO_OK;
        free(part);
    }
}

/* --- the cache ------------------------------------------------------------------------------------------ */

static void test_cache__gives_back_what_is_whole_only(void **state)
{
    MLO_UNUSED(state);
    struct mlo_digest key, other;
    struct mlo_buf got = MLO_BUF_INIT, file = MLO_BUF_INIT;
    char hex[MLO_DIGEST_TEXT_SIZE], name[MLO_DIGEST_TEXT_SIZE + 16];
    mlo_digest_of("a", 1, &key);
    mlo_digest_of("b", 1, &other);
    assert_false(cuda_cache_get(&key, "t", &got));
    cuda_cache_put(&key, "t", "0123456789", 10);
    assert_true(cuda_cache_get(&key, "t", &got));
    assert_int_equal(got.len, 10);
    assert_string_equal(mlo_buf_str(&got), "0123456789");
    assert_false(cuda_cache_get(&other, "t", &got));
    assert_false(cuda_cache_get(&key, "u", &got));
    snprintf(name, sizeof name, "%s.t.bin", mlo_digest_hex(&key, hex));
    char *path = mlo_fs_join(case_folder, "mlopt", "cuda", name, (char *)NULL);
    assert_non_null(path);
    MUST(mlo_fs_read(path, 1000, &file, err));
    file.data[3] ^= 1;
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fwrite(file.data, 1, file.len, f), file.len);
    fclose(f);
    mlo_buf_reset(&got);
    assert_false(cuda_cache_get(&key, "t", &got));
    assert_int_equal(got.len, 0);
    free(path);
    mlo_buf_clear(&got);
    mlo_buf_clear(&file);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent__every_library_says_what_and_what_next),
        cmocka_unit_test(test_absent__probe_and_compile_answer_with_a_line),
        cmocka_unit_test(test_absent__the_row_opens_its_plugin),
        cmocka_unit_test(test_cubin__is_read_and_no_damage_hurts),
        cmocka_unit_test(test_cache__gives_back_what_is_whole_only),
    };
    case_begin("/nonexistent");
    return case_end(cmocka_run_group_tests(tests, NULL, NULL));
}
