/* sup_cli.c - the table of commands, their help, and how one is chosen.
 *
 * Knows names and help texts; each command does its work in a file of its own.
 * Tests: tests/supervisor/test_sup_cli_args.c
 */
#include "sup_cli.h"

#include <signal.h>
#include <string.h>

#include "sup_client.h"
#include "sup_conf.h"
#include "sup_near.h"
#include "sup_term.h"

const struct sup_cmd sup_cmds[] = {
    {"serve", "[options]", "run the server",
     "Serves every model below the models folder (--models-dir, default ./models) over HTTP.\n"
     "Each loaded model runs in a sandboxed process of its own. Logs are JSON lines on stderr.\n"
     "SIGTERM or Ctrl-C lets running answers finish (--drain-grace-ms), then ends.\n"
     "\n"
     "Options come from a JSON file (--config FILE or INFERD_CONFIG), from the environment\n"
     "(INFERD_PORT=8090) and from flags; flags win. All of them:",
     "  inferd serve --models-dir ./models\n"
     "  inferd serve --models-dir ./models --preload gemma-3-270m.gguf --port 0\n"
     "  inferd serve --config /etc/inferd/inferd.json --log-level debug\n",
     NULL, 0, 0, sup_cmd_serve, sup_conf_help},
    {"chat", "[MODEL]", "talk to a model",
     "A conversation with streamed answers. MODEL may be left out when the server has one\n"
     "model that generates text, and may be a part of its name. Ctrl-C stops an answer,\n"
     "Ctrl-D or /quit ends. /help lists the commands inside. When stdin is no terminal, each\n"
     "line is one question. With --models-dir a private server is started for this\n"
     "conversation and stopped at its end.",
     "  inferd chat\n"
     "  inferd chat gemma-3-270m --models-dir ./models\n"
     "  echo 'Name three colours.' | inferd chat gemma-3-270m --max-tokens 32\n",
     sup_opts_chat, 0, 1, sup_cmd_chat, NULL},
    {"embed", "MODEL [TEXT...]", "turn texts, pictures and sounds into vectors",
     "One vector for each TEXT, picture and sound, one line each in the order of the command "
     "line;\n"
     "without any, for each line of stdin. With --group, one vector for all of them together.\n"
     "With --pdf, one for each page of a document, which inferd-pdf draws in a sandbox.\n"
     "MODEL may be a part of a name. With --similarity, prints how alike each pair is instead\n"
     "(cosine, -1 to 1). Exit status 1 when the server or a file says no, 2 for a wrong command\n"
     "line.",
     "  inferd embed all-MiniLM-L6-v2 'a text' --json\n"
     "  inferd embed all-MiniLM-L6-v2 --similarity 'a cat' 'a kitten' 'a car'\n"
     "  inferd embed all-MiniLM-L6-v2 < lines.txt > vectors.txt\n"
     "  inferd embed embeddinggemma2 --group --title 'Account recovery' --dimensions 256 \\\n"
     "    --text 'Reset a forgotten password.' --image reset.png\n"
     "  inferd embed embeddinggemma2 --task-type RETRIEVAL_QUERY 'How do I regain access?'\n",
     sup_opts_embed, 1, SUP_POS_MAX, sup_cmd_embed, NULL},
    {"rerank", "MODEL QUERY [DOCUMENT...]", "order documents by how well they answer a query",
     "Scores each DOCUMENT against QUERY and prints them best first; without any, each line of "
     "stdin\n"
     "(or of --file). MODEL is a reranker, or an embedder, whose vectors are compared; it may be "
     "a\n"
     "part of a name.",
     "  inferd rerank mxbai-rerank-base-v1 'Who wrote it?' 'Harper Lee did.' 'It rains.'\n"
     "  grep -rh needle docs | inferd rerank bge-reranker 'Where is the needle?' --top 5\n",
     sup_opts_rerank, 2, SUP_POS_MAX, sup_cmd_rerank, NULL},
    {"extract", "MODEL [TEXT...]", "find entities, relations, classes and records in texts",
     "Finds what the options (or --schema, the JSON of docs/extract.md) name in each TEXT and "
     "each\n"
     "--file; without any, in stdin as one text. MODEL may be a part of a name.",
     "  inferd extract gliner2 --entities person,company 'Ada Lovelace works for Acme.'\n"
     "  inferd extract gliner2 --entities person,company --relation person::works_for::company \\\n"
     "    --classify tone=neutral,angry --file letter.txt --json\n"
     "  inferd extract gliner2 --structure 'product=name::str,price::str,colours' < page.txt\n",
     sup_opts_extract, 1, SUP_POS_MAX, sup_cmd_extract, NULL},
    {"chunk", "[FILE]", "cut a text into pieces",
     "Cuts FILE (or stdin) into pieces of --target tokens and prints them with their places, "
     "counted\n"
     "in characters. Without --model words are counted and no model is needed.",
     "  inferd chunk book.txt --target 200 --sentences\n"
     "  inferd chunk book.txt --model all-MiniLM-L6-v2 --target 250 --overlap 20 --json\n",
     sup_opts_chunk, 0, 1, sup_cmd_chunk, NULL},
    {"decisions", "", "answer questions about texts by similarity",
     "Sends the request in FILE (the body of POST /ai/v1/decisions; '-' is stdin) to a running\n"
     "server and prints the answers: what was decided, or why not, and every similarity.\n"
     "\n"
     "With --scores LABELLED, prints what 'inferd calibrate' takes instead: the request has one\n"
     "question, LABELLED one JSON object a line, {\"input\": TEXT, \"labels\": [VALUE...]} and, if "
     "you\n"
     "choose it yourself, \"split\": fit, validation or holdout (else 40, 20 and 40 of a hundred, "
     "by\n"
     "the hash of the text).",
     "  inferd decisions --request route.json\n"
     "  inferd decisions --request route.json --json | jq .answers\n"
     "  inferd decisions --request route.json --scores labelled.jsonl > scores.jsonl\n",
     sup_opts_decisions, 0, 0, sup_cmd_decisions, NULL},
    {"calibrate", "SCORES OUT", "fit and qualify thresholds of decisions",
     "Fits thresholds on the samples of split fit, checks them on validation and qualifies them "
     "on\n"
     "holdout. If all targets are met, writes the artifact OUT (MODEL/calibrations/ID.json, which\n"
     "requests then name as calibration_id); else writes nothing, says what was not met and ends\n"
     "with status 1. Needs 30 fit, 30 validation and 100 holdout samples, of several labels also "
     "30\n"
     "holdout samples with and 30 without each.",
     "  inferd calibrate scores.jsonl models/all-MiniLM-L6-v2/calibrations/support_v1.json\n"
     "  inferd calibrate scores.jsonl out.json --precision 0.95 --minimum-coverage 0.5\n",
     sup_opts_calibrate, 2, 2, sup_cmd_calibrate, NULL},
    {"pull", "REF...", "fetch models from a hub, a URL or a folder",
     "REF is owner/name[:variant][@revision] at the hub, https://HOST/FILE.gguf, file:/PATH, or a\n"
     "short name like bge-m3. The revision is turned into a commit once; one set of weights of it\n"
     "and the small files beside them arrive in a hidden folder, are hashed against what the hub\n"
     "published, and appear below the models folder in one step. An ended pull goes on where it\n"
     "was when it is given again. A token is sent to the hub alone, never to where it sends us.\n"
     "The process that talks to the network can write to that hidden folder only.",
     "  inferd pull bge-m3\n"
     "  inferd pull google/gemma-3-270m:Q8_0 --models-dir ./models\n"
     "  inferd pull owner/private@v1.2 --token-file ~/.hub-token\n"
     "  inferd pull owner/private --vault-dir /srv/vault --key-file /etc/inferd/vault.key\n"
     "  inferd pull file:/mnt/usb/gemma-3-270m.gguf --json\n",
     sup_opts_pull, 1, SUP_POS_MAX, sup_cmd_pull, NULL},
    {"rm", "MODEL...", "remove models that were pulled",
     "Removes the folder of each MODEL (as 'inferd list --models-dir DIR' names it, or the\n"
     "reference it was pulled by). Folders without a receipt were not pulled and stay.",
     "  inferd rm BAAI/bge-m3\n", sup_opts_rm, 1, SUP_POS_MAX, sup_cmd_rm, NULL},
    {"verify", "MODEL...", "check pulled models against their receipts",
     "Sizes and hashes of every file that the receipt of a pulled MODEL names. Exit status 1 when\n"
     "one is missing or different.",
     "  inferd verify BAAI/bge-m3\n  inferd verify bge-m3 --json\n", sup_opts_check, 1, SUP_POS_MAX,
     sup_cmd_check, NULL},
    {"list", "", "show the server's models, or those of a folder",
     "Every model below the server's models folder, whether it is loaded, and why not. With\n"
     "--models-dir, no server is asked: the models of that folder and where they were pulled from.",
     "  inferd list\n  inferd list --json\n  inferd list --models-dir ./models\n", sup_opts_list, 0,
     0, sup_cmd_list, NULL},
    {"load", "MODEL", "load a model now",
     "Loads the model and returns when it is ready, or says why it is not.",
     "  inferd load gemma-3-270m.gguf\n", sup_opts_load, 1, 1, sup_cmd_load, NULL},
    {"unload", "MODEL", "unload a model",
     "Lets the model's running answers finish, then stops its worker and frees its memory.\n"
     "The next request loads it again.",
     "  inferd unload gemma-3-270m.gguf\n", sup_opts_load, 1, 1, sup_cmd_unload, NULL},
    {"keys", "create|list|rotate|revoke|show [ID]", "make and revoke API keys",
     "Works on the server's folder of keys (option vault_dir), whether a server runs or not. A "
     "key\n"
     "is shown once, on stdout; only a salted hash of it is kept. It belongs to a tenant, for "
     "whom\n"
     "shares and limits are counted, and may be narrowed to models, endpoints and a time.\n"
     "'rotate' gives a key a new secret; the old one works for --grace more. A running server\n"
     "hears of a change by SIGHUP. Each change is a line of audit.jsonl in the folder.",
     "  inferd keys create --vault-dir /var/lib/inferd/vault --tenant acme --name 'billing bot'\n"
     "  inferd keys create --tenant acme --model 'bert*' --endpoints embed,rerank --expires 90d "
     "\\\n"
     "    --requests-per-minute 600 --tokens-per-minute 200000\n"
     "  inferd keys create --admin --tenant ops --pid-file /run/inferd.pid\n"
     "  inferd keys list --json\n"
     "  inferd keys rotate k7m2p9xw4bqz --grace 24h\n"
     "  inferd keys revoke k7m2p9xw4bqz\n",
     sup_opts_keys, 1, 3, sup_cmd_keys, NULL},
    {"credentials", "set|list|rotate|remove ORIGIN | rotate-master | make-key FILE",
     "seal secrets for other machines",
     "Keeps one secret for each machine that models or files are fetched from, sealed under a\n"
     "master key in the server's vault folder. A secret comes from stdin or --file, never from\n"
     "the command line, and nothing prints it. The server gives it to that machine only: scheme,\n"
     "name and port must be the same. 'rotate-master' seals all of them under another key.",
     "  inferd credentials make-key /etc/inferd/vault.key\n"
     "  inferd credentials set https://huggingface.co --key-file /etc/inferd/vault.key < token\n"
     "  inferd credentials set https://files.example.org:8443 --as basic --file login.txt\n"
     "  inferd credentials list --vault-dir /var/lib/inferd/vault\n"
     "  inferd credentials rotate-master --key-file old.key --new-key-file new.key\n",
     sup_opts_credentials, 1, 3, sup_cmd_credentials, NULL},
    {"doctor", "", "check this machine, the sandbox and the configuration",
     "Checks what a server needs here and prints each finding with its reason: processor and\n"
     "kernels, each layer of the sandbox, what of a GPU's software is installed, memory and CPU\n"
     "limits, the models folder, the folder of keys, the port, a running server, and the "
     "configuration in force. Reads "
     "the same file, environment and\n"
     "flags as 'inferd serve'. Exit status 1 when something that serve needs is missing.",
     "  inferd doctor\n  inferd doctor --json\n  inferd doctor --config /etc/inferd/inferd.json\n",
     NULL, 0, 0, sup_cmd_doctor, NULL},
    {"bench", "MODEL.gguf|FOLDER", "measure the engine on a model, without a server",
     "Runs the serving engine on one model, in inferd-worker and its sandbox. Of a model that\n"
     "generates text: prompt and decode speed, time to the first token, 1 to 32 sequences\n"
     "together, a prompt whose beginning is known, tokens guessed ahead. Of one that embeds: "
     "texts\n"
     "a second, one to 32 in a request. Prints median, least and most of several runs. Takes\n"
     "minutes on a large model: --only names what you want to know. Ctrl-C shows what there is.",
     "  inferd bench ./models/gemma-3-270m.gguf\n"
     "  inferd bench ./models/gemma-3-270m.gguf --only prompt,decode --prompt 512 --gen 128 --runs "
     "9\n"
     "  inferd bench ./models/gemma-3-270m.gguf --only batch --context 1024 --kv-mb 2048\n"
     "  inferd bench ./models/all-MiniLM-L6-v2 --embed-batch 32 --embed-tokens 128 --json\n"
     "  inferd bench ./models/gemma-3-270m.gguf --backend cuda --json\n",
     sup_opts_bench, 1, 1, sup_cmd_bench, NULL},
    {"verify-kernels", "", "check every GPU kernel against the processor",
     "Runs each kernel of this build on the GPU, with inputs at the edges of what it takes, and\n"
     "compares with the same arithmetic on the processor: bit for bit where the kernel promises\n"
     "it, within its stated tolerance elsewhere. Ends with N/N. Takes some minutes.",
     "  inferd verify-kernels\n  inferd verify-kernels --quick --only linear_q4_0\n"
     "  inferd verify-kernels --markdown docs/kernel-conformance.md\n",
     sup_opts_verify, 0, 0, sup_cmd_verify, NULL},
    {"version", "", "print versions",
     "Version of this program, of its worker and of the libraries.",
     "  inferd version\n  inferd version --json\n", sup_opts_version, 0, 0, sup_cmd_version, NULL},
    {"help", "[COMMAND|config]", "explain a command, or every option of the server",
     "'inferd help config' prints every option of the server; with --markdown, as the page\n"
     "docs/configuration.md.",
     "  inferd help chat\n  inferd help config\n", sup_opts_help, 0, 1, sup_cmd_help_run, NULL},
    {0},
};

const struct sup_cmd *sup_cmd_find(const char *name)
{
    for (const struct sup_cmd *c = sup_cmds; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static void help_option(FILE *to, const struct sup_opt *o)
{
    char left[64], letter[8] = "";

    if (o->letter)
        snprintf(letter, sizeof(letter), "-%c, ", o->letter);
    snprintf(left, sizeof(left), "  %s--%s%s%s", letter, o->name, o->arg ? " " : "",
             o->arg ? o->arg : "");
    if (strlen(left) > 26)
        fprintf(to, "%s\n%28s%s\n", left, "", o->help);
    else
        fprintf(to, "%-28s%s\n", left, o->help);
}

void sup_cmd_help(FILE *to, const struct sup_cmd *cmd)
{
    fprintf(to, "usage: inferd %s %s%s\n\n%s\n", cmd->name, cmd->opts ? "[options] " : "",
            cmd->usage, cmd->text);
    if (cmd->more_help) {
        putc('\n', to);
        cmd->more_help(to);
    }
    if (cmd->opts) {
        fputs("\nOptions:\n", to);
        for (const struct sup_opt *o = cmd->opts; o->name; o++)
            help_option(to, o);
        fprintf(to, "%-28s%s\n", "  -h, --help", "this text");
    }
    fprintf(to, "\nExamples:\n%s", cmd->examples);
}

void sup_cli_help(FILE *to)
{
    fputs("inferd serves language and embedding models, each in a sandboxed process of its own.\n\n"
          "usage: inferd COMMAND [options]\n\n",
          to);
    for (const struct sup_cmd *c = sup_cmds; c->name; c++)
        fprintf(to, "  %-15s%s\n", c->name, c->summary);
    fputs(
        "\n'inferd COMMAND --help' explains one, 'inferd help config' lists the server's options.\n"
        "Client commands talk to " SUP_SERVER_DEFAULT "; --server or INFERD_SERVER names another.\n"
        "INFERD_API_KEY is the key that a server with keys asks for ('inferd keys').\n"
        "Exit status: 0 done, 1 failed, 2 the command line is wrong, 130 interrupted.\n",
        to);
}

static int no_such_command(const char *word)
{
    const char *best = NULL;
    size_t least = 3;

    for (const struct sup_cmd *c = sup_cmds; c->name; c++) {
        size_t d = sup_near(word, strlen(word), c->name);

        if (d < least) {
            least = d;
            best = c->name;
        }
    }
    fputs("inferd: no command '", stderr);
    sup_print_clean(stderr, word, false);
    fprintf(stderr, best ? "'; did you mean '%s'?\n" : "'\n", best);
    fputs("'inferd help' lists them.\n", stderr);
    return SUP_EXIT_USAGE;
}

static int run(const struct sup_cmd *cmd, int argc, char **argv, char **envp)
{
    struct sup_args a = {.cmd = cmd, .argc = argc, .argv = argv, .envp = envp};
    struct rc_err err = RC_ERR_INIT;
    bool help = false;
    int status;

    if (!cmd->opts)
        return cmd->run(&a);
    if (sup_args_parse(&a, cmd, argc, argv, &help, &err) != RC_OK) {
        status = sup_usage_error(cmd, "%s", err.msg);
    } else if (help) {
        sup_cmd_help(stdout, cmd);
        status = SUP_EXIT_OK;
    } else {
        a.envp = envp;
        status = cmd->run(&a);
    }
    sup_args_deinit(&a);
    return status;
}

int sup_cli_main(int argc, char **argv, char **envp)
{
    const struct sup_cmd *cmd;
    int status;

    /* a reader that went away (inferd list | head) is an error of write, not a death */
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        sup_cli_help(stderr);
        return SUP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        sup_cli_help(stdout);
        return SUP_EXIT_OK;
    }
    cmd = sup_cmd_find(strcmp(argv[1], "--version") == 0 ? "version" : argv[1]);
    if (!cmd)
        return no_such_command(argv[1]);
    status = run(cmd, argc - 2, argv + 2, envp);
    if (fflush(stdout) != 0 && status == SUP_EXIT_OK) {
        perror("inferd: writing to stdout");
        status = SUP_EXIT_FAIL;
    }
    return status;
}
