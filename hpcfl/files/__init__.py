"""Files and folders as a program may meet them: written whole or not at all, read without trust."""
