/* With arguments: say them. Without: sleep until a signal ends it. The pause container of every pod, and the one
   program of the image that has nothing else. */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(int count, char **words) {
    for (int i = 1; i < count; i++) printf("%s%c", words[i], i + 1 < count ? ' ' : '\n');
    if (count > 1) return 0;
    signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap);
    for (;;) pause();
}
