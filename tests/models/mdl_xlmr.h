/* mdl_xlmr.h - what the tests of XLM-RoBERTa and of cross-encoders share. Included behind
 * mdl_test.h. */
#ifndef INFERD_TESTS_MDL_XLMR_H
#define INFERD_TESTS_MDL_XLMR_H

#define BGE_DIR TEST_GOLDEN "/bge-m3"
#define CROSS_BERT_DIR TEST_GOLDEN "/cross-bert"
#define CROSS_XLMR_DIR TEST_GOLDEN "/cross-xlmr"

/* A copy of a cross-encoder with the tokenizer that its cases were made with. */
static inline void cross_copy(char *dir, const char *from)
{
    char a[512], b[512];

    tdir_new(dir, from);
    path_join(a, sizeof(a), strcmp(from, CROSS_BERT_DIR) == 0 ? BERT_DIR : BGE_DIR,
              "tokenizer.json");
    path_join(b, sizeof(b), dir, "tokenizer.json");
    copy_file(a, b);
}

#endif
