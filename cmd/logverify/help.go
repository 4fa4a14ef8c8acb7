package main

const about = `logverify checks what a gate leaves behind: its event log, the readable copies
of it, evidence bundles, and the receipts and checkpoints that others keep.

Every decision and every execution of a gate is an event in a chain. Each event
carries a SHA-256 hash over its content and the hash of the event before it, so
an event can't be changed, removed, inserted or moved without breaking all that
follow. logverify recomputes the chain from the bytes. It needs no running gate,
no database and no network, and it never writes.

The verdict, and the exit code for scripts:

  ok                   0   everything was checked and nothing is wrong
  corruption_detected  1   something was changed that no crash can explain
  partial              2   nothing is known to be wrong, but not everything
                           could be judged: an unfinished write at the end
                           (what a power cut leaves), a file that can't be
                           read, a receipt that no given key has signed, or
                           only a range was there
  (wrong usage)       64

What ok can't say: a chain does not see that its own end was cut off. The report
therefore lists what it could not exclude. Anchors narrow that down: knowledge
kept outside the log of how far it had come. The head file beside the log is
one; receipts and checkpoints that were kept elsewhere are better ones.`

const aboutWAL = `Checks the write-ahead log FILE, by default named audit.wal.

FILE is the active segment. Sealed segments (FILE.segments/), the head file
(FILE.head) and the signed checkpoints (FILE.checkpoints/) are found beside it
and checked with it. A gate may be running: the log is then judged up to the
last event that the gate knows to be on disk.

A copy of the file alone can be checked too; without its head file the report
says that removed batches at its end would not show.

With --receipts and --checkpoint the log has to agree with what others kept. A
receipt is the value of the header X-Gate-Receipt, a checkpoint is a signed
note. Give the key that signed them with --key: what is named and not signed by
it, or is no receipt or checkpoint of this log, accuses nobody and proves
nothing, and the verdict is at best partial (anchor_untrusted, with what to
give). A key that the log itself names is not enough: whoever wrote the log
wrote its name.

What was kept of a log before this one is held against that log's events in
FILE.retired/, and a warning names it. Where that folder was not copied along
nobody can tell: lay it beside FILE, or check the file of that log itself.

The checks:

  wal_existence   the files are there and open
  read_lock       no recovery or rotation ran while they were listed
  header          every segment begins with a well-formed header of this log
  event_count     as many events as the numbers say, and no anchor knows more
  event_hash      every event's hash is the hash of its content
  previous_hash   every event names the hash of the event before it
  sequence        the numbers run without gap or repeat
  chain_start     event 1 links to the header
  trailing_bytes  nothing but zeros after the last complete batch
  padding         the bytes between events are zero
  anchors         what is known from outside the log agrees with it`

const examplesWAL = `  logverify wal audit.wal
  logverify wal /backup/2026-05-01/audit.wal --json
  logverify wal audit.wal --receipts kept-by-the-client/ --key gate.pem
  logverify wal audit.wal --from-seq 1000 --to-seq 2000`

const aboutJSONL = `Checks FILE, the readable copy of the log (by default audit.log): one event a
line. Every line has to stand in its one form; its event is encoded and hashed
again, and compared with the line before. "-" reads standard input.

The file may begin with any event, because such files get rotated. From event 1
on the verdict can be ok, from a later one it is at best partial. A last line
without its end is partial too: it was being written. The copy is not the
evidence; the log is. With --wal the beginning is compared with the header of
that log and the last event with the event that the log has there; "logverify wal"
judges the log itself.`

const examplesJSONL = `  logverify jsonl audit.log
  logverify jsonl audit.log --wal audit.wal
  zcat audit.log.3.gz | logverify jsonl -`

const aboutBundle = `Checks the evidence bundle FILE: its form to the last byte, every hash, link and
number, every readable event against its record, the header of the log where
the bundle begins with event 1, the signed checkpoint with both inclusion
proofs, and the signature. "-" reads standard input.

Give the key that you had from the operator with --key. Without one the key
inside the bundle is used, and the first line says "self-asserted": then the
bundle is whole, but anyone could have made it.

A bundle that ends before it is complete is partial (a broken download looks the
same as a cut); every other departure from the format is corruption_detected.`

const examplesBundle = `  logverify bundle evidence.json --key gate.pem
  logverify bundle evidence.json --key gate.example+1c2d3e4f+ASm...= --json`

const aboutReceipt = `Checks receipts: the values of the header X-Gate-Receipt, one a line in FILE, or
in every file of a folder. "-" reads standard input. A receipt says that an
event had a hash, and that it was on disk when the answer left.

Without the key that signed a receipt nothing can be said about it: that is
partial. To hold receipts against a log use: logverify wal FILE --receipts DIR.`

const examplesReceipt = `  logverify receipt receipt.txt --key gate.pem
  curl -sD - ... | sed -n 's/^X-Gate-Receipt: //p' | logverify receipt - --key gate.pem`

const aboutCheckpoint = `Checks the signed note FILE: "this log had so many events, and this was the root
of their tree". "-" reads standard input. The cosignatures of witnesses given
with --witness are checked and listed; one that is missing makes it partial.

Without the key that signed it nothing can be said about a note, and nothing
about an empty file: that is partial. To hold checkpoints against a log use: logverify wal FILE --checkpoint
NOTE.`

const examplesCheckpoint = `  logverify checkpoint 00000000000000010000.note --key gate.pem
  logverify checkpoint newest.note --key gate.pem --witness witness.example+9f..+BA...=`
