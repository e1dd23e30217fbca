"""The soak: a project that is kept fresh while its processes are killed and stopped by chance.

python -m tests.soak --minutes 10 [--seed 7] [--store sqlite|postgres] [--bus embedded|kafka]

places     the store and the bus that it runs on
project    the tables, the rows that come all the time, and what must be made of them
crew       `up` and two more workers, each started again when it ends
mischief   what is done to them, by a seed
verdict    what must hold all the time, and what at the end
"""
