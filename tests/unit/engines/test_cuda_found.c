/* What is found of GPUs, their driver and the cuda engine, and what people are told: a machine without a GPU
 * is every machine here, and the driver's management library is made up (fake_nvml.c). */
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/found.h"
#include "engines/engines.h"
#include "engines/nvml.h"
#include "tests/cm.h"

/* --- the driver's management library ----------------------------------------------------------------------
 */

static void test_nvml__tells_what_it_knows(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_nvml *nvml;
    struct mlo_gpu_info gpus[4];
    struct mlo_gpu_state now;
    char words[64];
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_ok(mlo_nvml_open(MLOPT_FAKE_NVML, &nvml, &err));
    assert_string_equal(mlo_nvml_driver(nvml), "580.95.05");
    assert_int_equal(mlo_nvml_gpus(nvml, gpus, 4), 2);
    assert_string_equal(gpus[0].name, "NVIDIA H200");
    assert_int_equal(gpus[0].sm, 90);
    assert_int_equal(gpus[1].sm, 86);
    assert_true(gpus[0].memory_bytes == 150000000000ull);
    assert_int_equal(gpus[0].max_sm_mhz, 0);               /* not told */
    assert_true(mlo_nvml_gpu(nvml, "GPU-bbbb", &gpus[2])); /* whatever its number is */
    assert_string_equal(gpus[2].name, "NVIDIA A10");
    assert_false(mlo_nvml_gpu(nvml, "GPU-cccc", &gpus[2]));
    assert_true(mlo_nvml_state(nvml, "GPU-aaaa", &now));
    assert_true(now.power_w == 412.5 && now.sm_mhz == 1755 && now.memory_mhz == 3201 && now.busy == 0.97);
    assert_true(now.memory_used_bytes == 1e9 && now.energy_j == -1 && now.temperature_c == -1);
    assert_string_equal(mlo_nvml_throttle_words(now.throttle, words, sizeof words), "power cap, thermal");
    assert_string_equal(mlo_nvml_throttle_words(3, words, sizeof words), ""); /* idle */
    assert_false(mlo_nvml_state(nvml, "GPU-cccc", &now));
    setenv("CUDA_VISIBLE_DEVICES", "GPU-b", 1);
    assert_int_equal(mlo_nvml_gpus(nvml, gpus, 4), 1);
    assert_string_equal(gpus[0].uuid, "GPU-bbbb");
    unsetenv("CUDA_VISIBLE_DEVICES");
    mlo_nvml_close(nvml);
    mlo_nvml_close(NULL);
}

static void test_nvml__is_not_there(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_nvml *nvml;
    assert_int_equal(mlo_nvml_open("libno-such-thing.so.1", &nvml, &err), MLO_EUNAVAILABLE);
    assert_null(nvml);
    assert_contains(err.message, "there is no NVIDIA driver");
    setenv("FAKE_NVML", "off", 1);
    assert_int_equal(mlo_nvml_open(MLOPT_FAKE_NVML, &nvml, &err), MLO_EUNAVAILABLE);
    assert_contains(err.message, "does not answer (nvmlInit: 9)");
    unsetenv("FAKE_NVML");
    assert_int_equal(mlo_nvml_open("libm.so.6", &nvml, &err), MLO_EUNAVAILABLE);
    assert_contains(err.message, "has no nvmlInit_v2");
}

static void test_visible__is_what_the_variable_names(void **state)
{
    MLO_UNUSED(state);
    static const char *const uuids[] = {"GPU-aa", "GPU-ab", "GPU-b"};
    static const struct {
        const char *value;
        bool visible[3];
    } rows[] = {{NULL, {true, true, true}},        {"", {false, false, false}},
                {"-1", {false, false, false}},     {"1", {false, true, false}},
                {"2,0", {true, false, true}},      {"0,7,1", {true, false, false}},
                {"GPU-ab", {false, true, false}},  {"GPU-b,GPU-aa", {true, false, true}},
                {"none,0", {false, false, false}}, {"3", {false, false, false}}};
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        bool visible[3] = {false};
        mlo_gpus_visible(rows[i].value, uuids, 3, visible);
        assert_memory_equal(visible, rows[i].visible, sizeof visible);
    }
}

/* --- targets ----------------------------------------------------------------------------------------------
 */

static void test_targets__of_gpus(void **state)
{
    MLO_UNUSED(state);
    assert_int_equal(mlo_cuda_target_sm("cuda:sm90"), 90);
    assert_int_equal(mlo_cuda_target_sm("cuda:sm120"), 120);
    static const char *const none[] = {"cuda",     "cuda:",   "cuda:sm", "cuda:sm9",
                                       "cuda:smx", "cuda:90", "cpu:avx2"};
    for (size_t i = 0; i < MLO_COUNT(none); i++)
        assert_int_equal(mlo_cuda_target_sm(none[i]), 0);
    assert_true(mlo_sm_runs(90, 90));
    assert_true(mlo_sm_runs(89, 80));
    assert_false(mlo_sm_runs(80, 86));
    assert_false(mlo_sm_runs(90, 80)); /* machine code is of one generation */
    assert_true(mlo_sm_runs(103, 100));
    size_t count;
    const char *const *names = mlo_targets(&count);
    for (size_t i = 0; i < count; i++)
        assert_true(strncmp(names[i], "cuda:", 5) != 0 || mlo_cuda_target_sm(names[i]) > 0);
}

/* --- what people are told ---------------------------------------------------------------------------------
 */

#define PART(name, kind, found, use)                                                                         \
    "{\"name\":\"" name "\",\"kind\":\"" kind "\",\"found\":" found                                          \
    ",\"version\":\"1\",\"why\":\"not here\","                                                               \
    "\"for\":\"" use "\"}"

static json_t *told(const char *inventory, enum mlo_status compile, enum mlo_status run, const char *why)
{
    struct mlo_error err = {0}, problem = {0};
    json_t *document = NULL, *out = NULL;
    assert_ok(mlo_json_parse(inventory, strlen(inventory), "test", &document, &err));
    if (run != MLO_OK)
        (void)mlo_error_set(&problem, run, "%s", why);
    const struct mlo_cuda_answers answers = {.inventory = document,
                                             .compile = compile,
                                             .run = run,
                                             .compile_error = &problem,
                                             .run_error = &problem};
    assert_ok(mlo_cuda_found_of(&answers, &out, &err));
    json_decref(document);
    return out;
}

static const json_t *missing(const json_t *found, size_t i)
{
    return json_array_get(json_object_get(found, "missing"), i);
}

static void test_found__everything(void **state)
{
    MLO_UNUSED(state);
    json_t *found =
        told("{\"parts\":[" PART("plugin", "plugin", "true", "compile") "," PART(
                 "libcuda", "driver", "true", "run") "],\"gpus\":[{\"name\":\"NVIDIA H200\",\"sm\":90}]}",
             MLO_OK, MLO_OK, "");
    assert_true(mlo_json_bool(found, "run", false) && mlo_json_bool(found, "compile", false));
    assert_string_equal(mlo_json_str(found, "verdict", ""), "models run on 1 GPU here");
    assert_null(missing(found, 0));
    json_decref(found);
}

static void test_found__no_gpu(void **state)
{
    MLO_UNUSED(state);
    json_t *found = told("{\"parts\":[" PART("plugin", "plugin", "true", "compile") "," PART(
                             "libcuda", "driver", "true", "run") "],"
                                                                 "\"gpus\":[]}",
                         MLO_OK, MLO_EUNAVAILABLE, "no device");
    assert_string_equal(mlo_json_str(found, "verdict", ""),
                        "no GPU can be used here; plans for GPUs can be compiled all the same: no device");
    assert_string_equal(mlo_json_str(missing(found, 0), "name", ""), "GPU");
    assert_contains(mlo_json_str(missing(found, 0), "next", ""), "CUDA_VISIBLE_DEVICES");
    json_decref(found);
}

static void test_found__each_part_has_its_remedy(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *inventory, *name, *next;
    } rows[] = {
        {"{\"parts\":[" PART("libmlopt_engine_cuda.so", "plugin", "false", "compile") "],\"gpus\":[]}",
         "libmlopt_engine_cuda.so", "-DMLOPT_CUDA=ON"},
        {"{\"parts\":[" PART("libcuda.so.1", "driver", "false", "run") "],\"gpus\":[]}", "libcuda.so.1",
         "--gpus all"},
        {"{\"parts\":[" PART("libnvrtc.so.13", "library", "false", "compile") "],\"gpus\":[]}",
         "libnvrtc.so.13", "nvidia-cuda-nvrtc"},
        {"{\"parts\":[" PART("libcublasLt.so.13", "library", "false", "run") "],\"gpus\":[]}",
         "libcublasLt.so.13", "nvidia-cublas"},
        {"{\"parts\":[" PART("libcudnn.so.9", "library", "false", "run") "],\"gpus\":[]}", "libcudnn.so.9",
         "nvidia-cudnn"},
        {"{\"parts\":[" PART("libnvJitLink.so.13", "library", "false", "run") "],\"gpus\":[]}",
         "libnvJitLink.so.13", "MLOPT_CUDA_LIBS"},
    };
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        json_t *found = told(rows[i].inventory, MLO_EUNAVAILABLE, MLO_EUNAVAILABLE, "why");
        assert_false(mlo_json_bool(found, "run", true) || mlo_json_bool(found, "compile", true));
        assert_string_equal(mlo_json_str(missing(found, 0), "name", ""), rows[i].name);
        assert_string_equal(mlo_json_str(missing(found, 0), "why", ""), "not here");
        assert_contains(mlo_json_str(missing(found, 0), "next", ""), rows[i].next);
        assert_contains(mlo_json_str(found, "verdict", ""), "no plans for GPUs compiled: why");
        json_decref(found);
    }
}

static void test_found__here(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *found = NULL;
    int sm[4];
    const struct mlo_engine *cuda;
    assert_ok(mlo_cuda_found(&found, &err));
    assert_ok(mlo_engine_find("cuda", &cuda, &err));
    assert_true(mlo_json_bool(found, "run", false) == (cuda->probe(NULL) == MLO_OK));
    assert_true(json_array_size(json_object_get(found, "parts")) >= 2);
    assert_true(mlo_json_bool(found, "run", false) || missing(found, 0));
    assert_true(mlo_machine_gpus(sm, 4) == 0 || mlo_json_bool(found, "run", false));
    json_decref(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nvml__tells_what_it_knows),
        cmocka_unit_test(test_nvml__is_not_there),
        cmocka_unit_test(test_visible__is_what_the_variable_names),
        cmocka_unit_test(test_targets__of_gpus),
        cmocka_unit_test(test_found__everything),
        cmocka_unit_test(test_found__no_gpu),
        cmocka_unit_test(test_found__each_part_has_its_remedy),
        cmocka_unit_test(test_found__here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
