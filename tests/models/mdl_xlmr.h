/* mdl_xlmr.h - what the tests of XLM-RoBERTa share. Included once per test program, behind
 * mdl_test.h. */
#ifndef INFERD_TESTS_MDL_XLMR_H
#define INFERD_TESTS_MDL_XLMR_H

#define BGE_DIR TEST_GOLDEN "/bge-m3"

/* XLM-R's specials at their places and a few words: these tests give ids of their own. */
#define BGE_TOKENIZER                                                                             \
    "{\"version\": \"1.0\", \"added_tokens\": ["                                                  \
    "{\"id\": 0, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": "   \
    "false, \"normalized\": false, \"special\": true},"                                           \
    "{\"id\": 2, \"content\": \"</s>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": "  \
    "false, \"normalized\": false, \"special\": true}],"                                          \
    "\"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, "                       \
    "\"handle_chinese_chars\": true, \"strip_accents\": null, \"lowercase\": true},"              \
    "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},"                                        \
    "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["                        \
    "{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "      \
    "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}], \"pair\": ["      \
    "{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "      \
    "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}, "                  \
    "{\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", "     \
    "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}],"                  \
    "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [0], \"tokens\": [\"<s>\"]}, "      \
    "\"</s>\": {\"id\": \"</s>\", \"ids\": [2], \"tokens\": [\"</s>\"]}}},"                       \
    "\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true},"              \
    "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"<unk>\", "                             \
    "\"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 100, \"vocab\": "       \
    "{\"<s>\": 0, \"<pad>\": 1, \"</s>\": 2, \"<unk>\": 3, \"wind\": 4, \"sea\": 5, "             \
    "\"harbour\": 6}}}"

/* A copy of the checkpoint with that tokenizer. */
static inline void bge_copy(char *dir)
{
    tdir_new(dir, BGE_DIR);
    tdir_put(dir, "tokenizer.json", BGE_TOKENIZER);
}

#endif
