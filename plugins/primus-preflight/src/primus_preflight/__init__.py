"""Before a large job: are all nodes alike, do they see the same files, and is one of them slow?"""
