/* Base64, SSH signatures, git's objects: next to what OpenSSH and git write. */
#include <string.h>

#include "tests/cm.h"

#include "base/base.h"

static void test_base64__is_one_text_for_some_bytes(void **state)
{
    static const char *const pairs[][2] = {{"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
                                           {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe", "//4="}};
    static const char *const bad[] = {"Z",    "Zg",   "Zg=",  "Zh==",    "Zg==\n",
                                      " Zg=", "Z===", "====", "Zm9v Zg", "Zg==Zg=="};
    struct mlo_buf out = MLO_BUF_INIT;
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(pairs); i++) {
        mlo_buf_reset(&out);
        mlo_base64_encode(pairs[i][0], strlen(pairs[i][0]), &out);
        assert_string_equal(mlo_buf_str(&out), pairs[i][1]);
        mlo_buf_reset(&out);
        assert_true(mlo_base64_decode(pairs[i][1], strlen(pairs[i][1]), &out));
        assert_string_equal(mlo_buf_str(&out), pairs[i][0]);
    }
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        mlo_buf_reset(&out);
        assert_false(mlo_base64_decode(bad[i], strlen(bad[i]), &out));
        assert_int_equal(out.len, 0);
    }
    mlo_buf_clear(&out);
}

static void test_ssh_sign__takes_only_its_own_bytes(void **state)
{
    struct mlo_error err = {0};
    struct mlo_sign_key *key;
    struct mlo_public_key signer;
    struct mlo_buf text = MLO_BUF_INIT, again = MLO_BUF_INIT;
    char *dir, *path;
    MLO_UNUSED(state);
    assert_int_equal(mlo_fs_tempdir(NULL, "mlopt-ssh-", &dir, &err), MLO_OK);
    path = mlo_fs_join(dir, "key", NULL);
    assert_int_equal(mlo_sign_key_create(path, &key, &err), MLO_OK);
    assert_int_equal(mlo_ssh_sign(key, "git", "hello", 5, &text, &err), MLO_OK);
    assert_int_equal(mlo_ssh_sign(key, "git", "hello", 5, &again, &err), MLO_OK);
    assert_string_equal(mlo_buf_str(&text), mlo_buf_str(&again));
    assert_true(mlo_ssh_verify(text.data, text.len, "git", "hello", 5, &signer));
    assert_true(mlo_public_key_eq(&signer, mlo_sign_key_public(key)));
    assert_false(mlo_ssh_verify(text.data, text.len, "file", "hello", 5, &signer));
    assert_false(mlo_ssh_verify(text.data, text.len, "git", "hellO", 5, &signer));
    assert_false(mlo_ssh_verify(text.data, text.len - 1, "git", "hello", 5, &signer));
    for (size_t i = 0; i < text.len; i++) {
        text.data[i] ^= 1;
        assert_false(mlo_ssh_verify(text.data, text.len, "git", "hello", 5, &signer));
        text.data[i] ^= 1;
    }
    mlo_buf_clear(&text);
    mlo_buf_clear(&again);
    mlo_sign_key_free(key);
    mlo_fs_remove_tree(dir);
    free(path);
    free(dir);
}

static void test_ssh_sign__knows_what_openssh_writes(void **state)
{
    /* ssh-keygen -t ed25519; ssh-keygen -l -f key.pub; the key of RFC 8032's first test */
    struct mlo_public_key key;
    struct mlo_buf line = MLO_BUF_INIT;
    char fingerprint[MLO_SSH_FINGERPRINT_SIZE];
    MLO_UNUSED(state);
    assert_true(mlo_public_key_parse(
        "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", &key));
    mlo_ssh_public_key(&key, &line);
    assert_string_equal(mlo_buf_str(&line),
                        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea");
    assert_string_equal(mlo_ssh_fingerprint(&key, fingerprint),
                        "SHA256:bbXpuKG6zhzdmnxq256TlqzFBzRl2f6OOg722cYNbU8");
    mlo_buf_clear(&line);
}

static void test_git_object__ids_are_gits(void **state)
{
    struct mlo_error err = {0};
    struct mlo_git_file files[3] = {{.path = "a.txt"}, {.path = "a/b.txt"}, {.path = "a0"}};
    struct mlo_git_id id, again;
    char text[MLO_GIT_ID_TEXT_SIZE];
    MLO_UNUSED(state);
    mlo_git_object_id("blob", "hello\n", 6, &id);
    assert_string_equal(mlo_git_id_text(&id, text), "ce013625030ba8dba906f756967f9e9ca394464a");
    assert_true(mlo_git_id_parse(text, &again) && mlo_git_id_eq(&id, &again));
    assert_false(mlo_git_id_parse("ce01", &again));
    text[3] = 'G';
    assert_false(mlo_git_id_parse(text, &again));
    assert_int_equal(mlo_git_tree(files, 0, NULL, NULL, &again, &err), MLO_OK);
    assert_string_equal(mlo_git_id_text(&again, text), "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
    for (size_t i = 0; i < 3; i++)
        files[i].blob = id;
    assert_int_equal(mlo_git_tree(files, 3, NULL, NULL, &again, &err), MLO_OK);
    assert_string_equal(mlo_git_id_text(&again, text), "84685a5f118a60ab27e1ca5ec51915e8255337b5");
    files[2].path = "a";
    assert_int_equal(mlo_git_tree(files, 3, NULL, NULL, &again, &err), MLO_EINVAL);
    files[0].path = "a";
    assert_int_equal(mlo_git_tree(files, 2, NULL, NULL, &again, &err), MLO_EINVAL);
    files[0].path = "x//y";
    assert_int_equal(mlo_git_tree(files, 1, NULL, NULL, &again, &err), MLO_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base64__is_one_text_for_some_bytes),
        cmocka_unit_test(test_ssh_sign__takes_only_its_own_bytes),
        cmocka_unit_test(test_ssh_sign__knows_what_openssh_writes),
        cmocka_unit_test(test_git_object__ids_are_gits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
